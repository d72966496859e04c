// out[group] <- value
//
// Idea: work-groups that do next to nothing, so many that what is measured is how fast they follow each other on a multiprocessor.

__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void probe(int value, __global int *restrict out)
{
    if (get_local_id(0) == 0) out[get_group_id(0)] = value;
}
