// How threads of a warpgroup meet, and how blocks of a cluster send each other words that a barrier counts.

inline void together(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory"); } // the 128 threads of a warpgroup

// a word into the same place of another block, whose barrier in the same place as ``bar`` counts its four bytes once it is there
inline void send_remote(uint to, uint value, uint bar, uint rank) {
    asm volatile("{\n.reg .b32 there, full;\nmapa.shared::cluster.u32 there, %0, %3;\nmapa.shared::cluster.u32 full, %2, %3;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %1, [full];\n}" ::"r"(to), "r"(value), "r"(bar), "r"(rank) : "memory");
}
