// Device code of the probes. kernels.ptx is compiled from this file by benchmarks/compile_kernels.py; the driver turns
// it into machine code when a probe starts, so that measuring needs no CUDA compiler on the machine.

// A word of the test pattern. splitmix64 of the position, so that a shifted, repeated or stale block cannot pass;
// the seed makes every run's data new. probe_pattern.py computes the same words on the host.
__device__ unsigned long long pattern_word(unsigned long long position, unsigned long long seed) {
    unsigned long long x = (position + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (x ^ (x >> 31)) ^ seed;
}

extern "C" __global__ void fill_pattern(unsigned long long *words, unsigned long long count, unsigned long long seed) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        words[i] = pattern_word(i, seed);
}

extern "C" __global__ void count_wrong_words(const unsigned long long *words, unsigned long long count,
                                             unsigned long long seed, unsigned long long *wrong) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x, mine = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        mine += words[i] != pattern_word(i, seed);
    if (mine) atomicAdd(wrong, mine);
}

// Integers in [-1000, 1000] as floats: sums over up to 16,000 ranks are exact, whatever the order of the additions.
__device__ float summand(unsigned long long position, unsigned long long seed, unsigned int rank) {
    return (float)((long long)(pattern_word(position * 64 + rank, seed) % 2001) - 1000);
}

extern "C" __global__ void fill_summands(float *values, unsigned long long count, unsigned long long seed,
                                         unsigned int rank) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        values[i] = summand(i, seed, rank);
}

extern "C" __global__ void count_wrong_sums(const float *values, unsigned long long count, unsigned long long seed,
                                            unsigned int ranks, unsigned long long *wrong) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x, mine = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        float sum = 0.0f;
        for (unsigned int rank = 0; rank < ranks; rank++) sum += summand(i, seed, rank);
        mine += values[i] != sum;
    }
    if (mine) atomicAdd(wrong, mine);
}

// Holds a stream until the host sets flag[0]; gives up after limit_ns and says so in flag[1], so that a copy that
// blocks the host while it is being queued cannot hang the probe.
extern "C" __global__ void wait_for_host(volatile unsigned int *flag, unsigned long long limit_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    while (flag[0] == 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > limit_ns) {
            flag[1] = 1;
            return;
        }
    }
}

// Every load waits for the one before: its time is the latency of the path. volatile keeps the L1 cache out of it.
extern "C" __global__ void chase_pointers(const volatile unsigned long long *next, unsigned long long start,
                                          unsigned int loads, unsigned long long *end) {
    unsigned long long at = start;
    for (unsigned int i = 0; i < loads; i++) at = next[at];
    *end = at;
}
