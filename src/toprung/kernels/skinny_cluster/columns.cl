// C = alpha * Y * op(X) + beta * C as in ../skinny/columns.cl, which has the picture and the preconditions, but the slices of K are the
// blocks of a cluster and add up in one launch, as ../include/sums_in_cluster.cl says.
#include "../include/sums_in_cluster.cl"
#include "../skinny/columns.cl"
