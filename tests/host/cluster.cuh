inline void cluster_arrive() { lets_go(), self->arrived = of_cluster.arrive(); }
inline void cluster_begin() { cluster_arrive(); }
inline void cluster_wait() { of_cluster.wait(self->arrived), ++self->epoch; }
template <class V> inline void put(const float *here, uint rank, V v) {
    memcpy(blocks[rank].memory + ((const char *)here - mine->memory), &v, sizeof v);
}
