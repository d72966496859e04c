// until *opened >= number or most nanoseconds are over:  wait
//
//     queue   | hold | mark | call | call | … | call | mark |
//     host    puts all of these there                        | opens
//
// Preconditions: opened lies in page-locked memory of the host; one work-item is launched.
//
// The idea: what follows in the queue begins when the host has put everything there, so that the time between the two marks is the
// device's alone, however slow the host is. NVIDIA's nvbench measures so ("blocking kernel"). The limit is there for what makes the
// host wait for the device in the meantime, such as a queue that is full: the gate opens by itself then.

extern "C" __global__ void hold(const volatile long long* opened, long long number, long long most)
{
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*opened < number && now - start < most);
}
