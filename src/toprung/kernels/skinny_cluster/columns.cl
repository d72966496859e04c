// skinny's columns, with slices of K in clusters
#include "meet.cl"
#include "../skinny/columns.cl"
