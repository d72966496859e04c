// out[0] <- value
//
// One work-item. Idea: next to nothing, so that what is measured is the launch; the number shows that the launch took place.

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void probe(int value, __global int *restrict out)
{
    out[0] = value;
}
