// What the splitting pass leaves beside the terms of each row of A (column of B), and what follows from it.

#define TOP 14        // the largest element of a scaled row lies in [2^14, 2^15)
#define RESIDUAL 2048 // what the residual is multiplied by

struct __align__(8) Row {
    int exponent; // times 2^exponent: from the scaled row back to the row
    uint losses;  // elements that are not the row's bulk, and two flags
};

#define THIN 0x3fffffffu
#define LOST 0x40000000u    // the row has elements that two terms cannot carry in full
#define SPECIAL 0x80000000u // the row has an Inf or a NaN

inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); } // -126 … 127
