// skinny's columns, with slices of K in clusters
#include "../include/sums_in_cluster.cl"
#include "../skinny/columns.cl"
