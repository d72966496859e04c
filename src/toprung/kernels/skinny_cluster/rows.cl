// skinny's rows, with slices of K in clusters
#include "meet.cl"
#include "../skinny/rows.cl"
