inline void together(int group) { named_barrier(group, 128); }
inline void send_remote(uint to, uint value, uint bar, uint rank) {
    later([=] {
        mine = &blocks[rank];
        memcpy(at_byte(to), &value, sizeof value);
        changed(bar, 0, -(int)sizeof value);
    });
}
