// Device code of the probes. benchmarks/compile_kernels.py compiles this file to kernels.ptx. The driver turns
// kernels.ptx into machine code when a probe starts, so that measuring needs no CUDA compiler on the machine.

// Return a word of the test pattern: splitmix64 of the position, so that a shifted or repeated block cannot pass. The
// seed makes the data of every run new, so that a stale block cannot pass. _pattern.py computes the same words on the
// host.
__device__ unsigned long long pattern_word(unsigned long long position, unsigned long long seed) {
    unsigned long long x = (position + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (x ^ (x >> 31)) ^ seed;
}

// Write `count` words of the pattern. In this kernel and the next ones, each thread takes every `stride`-th element.
extern "C" __global__ void fill_pattern(unsigned long long *words, unsigned long long count, unsigned long long seed) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        words[i] = pattern_word(i, seed);
}

// Add the number of words that differ from the pattern to `wrong`.
extern "C" __global__ void count_wrong_words(const unsigned long long *words, unsigned long long count,
                                             unsigned long long seed, unsigned long long *wrong) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x, wrong_here = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        wrong_here += words[i] != pattern_word(i, seed);
    if (wrong_here) atomicAdd(wrong, wrong_here);
}

// Return an integer in [-1000, 1000] as a float. Sums over up to 16,000 ranks are exact in any order of additions.
__device__ float summand(unsigned long long position, unsigned long long seed, unsigned int rank) {
    return (float)((long long)(pattern_word(position * 64 + rank, seed) % 2001) - 1000);
}

// Write the summands of one rank.
extern "C" __global__ void fill_summands(float *values, unsigned long long count, unsigned long long seed,
                                         unsigned int rank) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        values[i] = summand(i, seed, rank);
}

// Add the number of values that differ from the sum of all ranks' summands to `wrong`.
extern "C" __global__ void count_wrong_sums(const float *values, unsigned long long count, unsigned long long seed,
                                            unsigned int ranks, unsigned long long *wrong) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x, wrong_here = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        float sum = 0.0f;
        for (unsigned int rank = 0; rank < ranks; rank++) sum += summand(i, seed, rank);
        wrong_here += values[i] != sum;
    }
    if (wrong_here) atomicAdd(wrong, wrong_here);
}

// Hold a stream until the host sets flag[0]. After limit_ns, set flag[1] and end, because a copy that blocks the host
// while it is queued would otherwise hang the probe.
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

// Follow `loads` positions in the table `next`, beginning at position `start`, and write the last position to `end`.
// Every load waits for the previous load, so its time is the latency of the path. Because the table is volatile, loads
// bypass the L1 cache.
extern "C" __global__ void chase_pointers(const volatile unsigned long long *next, unsigned long long start,
                                          unsigned int loads, unsigned long long *end) {
    unsigned long long at = start;
    for (unsigned int i = 0; i < loads; i++) at = next[at];
    *end = at;
}
