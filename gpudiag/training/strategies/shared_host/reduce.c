/* The CPU's side of an all-reduce through shared host memory: the loops of one rank's threads.
 *
 * Python starts each loop in its own thread through ctypes, which releases the interpreter's lock. Nothing here needs
 * the lock, so a training loop that holds it does not delay the all-reduce. layout.py describes the memory and native.py
 * mirrors `struct engine`; both must change with this file.
 *
 * Counters are 32 bits and may wrap: a is at or after b when (int32_t)(a - b) >= 0.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_THREADS = 64, BLOCK = 2048, LINE = 128, IDLE_ROUNDS = 1000 };
enum { ARRIVED = 0, FETCHED = 1024, REDUCED = 2048, READY = 2176 };   /* within a rank's control page */
enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, FLOAT64 = 3 };
enum { STOPPED = 0, MISMATCH = 1 };

struct piece { uint32_t count, kind, divisor, unused; };

struct engine {
    uint8_t *control, *pieces, *staging;      /* shared: a page per rank; a ring of pieces per rank; the slots */
    uint64_t page_bytes, chunk_bytes;
    uint32_t rank, world, slots, lanes, ring, threads;
    uint32_t spin;                            /* rounds of spinning before a sleep, 15 to 70 ns each */
    uint32_t in_turn;                         /* there are fewer processors than threads */
    /* Private to the process, each on its own cache line. */
    uint32_t submitted __attribute__((aligned(LINE)));
    uint32_t go __attribute__((aligned(LINE)));
    uint32_t stop __attribute__((aligned(LINE)));
    uint32_t sleepers __attribute__((aligned(LINE)));
    struct { uint32_t value __attribute__((aligned(LINE))); } done[MAX_THREADS];
};

static inline uint32_t load(const void *at) { return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE); }
static inline void store(void *at, uint32_t value) { __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELEASE); }
static inline int reached(uint32_t value, uint32_t wanted) { return (int32_t)(value - wanted) >= 0; }

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spin while chunks are under way, because waking from a sleep takes longer than a chunk, and every chunk would wait for
 * the last thread of all ranks to wake. After `spin` rounds, sleep. If there are fewer processors than threads, the sleep
 * grows to an eighth of the time waited so far, up to a millisecond, so that threads that train get the processors. */
static inline void wait_briefly(const struct engine *e, uint32_t *rounds) {
    if (++*rounds < e->spin) {
        pause_briefly();
    } else {
        uint32_t doubled = e->in_turn ? (*rounds - e->spin) / 8 : 0;
        struct timespec pause = {0, doubled < 5 ? 50000L << doubled : 1000000L};
        nanosleep(&pause, 0);
    }
}

/* Rounds without submitted chunks after which a thread sleeps until a chunk is submitted. */
static inline uint32_t idle_rounds(const struct engine *e) { return e->in_turn ? e->spin : IDLE_ROUNDS; }

/* Sleep until another thread has changed `word` from the value `seen`, at most 0.1 s. */
static void sleep_until_changed(struct engine *e, uint32_t *word, uint32_t seen) {
    struct timespec longest = {0, 100000000};
    __atomic_add_fetch(&e->sleepers, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == seen && !load(&e->stop))
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &longest, 0, 0);
    __atomic_sub_fetch(&e->sleepers, 1, __ATOMIC_SEQ_CST);
}

/* Wake the threads that sleep until `submitted` changes. */
static void wake(struct engine *e) {
    if (__atomic_load_n(&e->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &e->submitted, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

/* --- sums ------------------------------------------------------------------------------------------------------- */

static inline float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static inline uint16_t to_bfloat16(float value) { /* to nearest, ties to even; NaN is preserved */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

static void add_bfloat16(float *restrict sum, const uint16_t *restrict source, long count) {
    for (long i = 0; i < count; i++) sum[i] += from_bfloat16(source[i]);
}

static void put_bfloat16(uint16_t *restrict target, const float *restrict sum, long count, float scale) {
    for (long i = 0; i < count; i++) target[i] = to_bfloat16(sum[i] * scale);
}

static void add_float32(float *restrict sum, const float *restrict source, long count) {
    for (long i = 0; i < count; i++) sum[i] += source[i];
}

static void put_float32(float *restrict target, const float *restrict sum, long count, float scale) {
    for (long i = 0; i < count; i++) target[i] = sum[i] * scale;
}

#if defined(__F16C__)
#define HAS_FLOAT16 1
static void add_float16(float *restrict sum, const uint16_t *restrict source, long count) {
    long i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i),
                                                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i)))));
    for (; i < count; i++) sum[i] += _cvtsh_ss(source[i]);
}

static void put_float16(uint16_t *restrict target, const float *restrict sum, long count, float scale) {
    long i = 0;
    __m256 by = _mm256_set1_ps(scale);
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(target + i),
                         _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(sum + i), by), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++) target[i] = _cvtss_sh(sum[i] * scale, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__aarch64__)
#define HAS_FLOAT16 1
static void add_float16(float *restrict sum, const uint16_t *restrict source, long count) {
    const __fp16 *from = (const __fp16 *)source;
    for (long i = 0; i < count; i++) sum[i] += from[i];
}

static void put_float16(uint16_t *restrict target, const float *restrict sum, long count, float scale) {
    __fp16 *to = (__fp16 *)target;
    for (long i = 0; i < count; i++) to[i] = (__fp16)(sum[i] * scale);
}
#else
#define HAS_FLOAT16 0
static void add_float16(float *sum, const uint16_t *source, long count) { (void)sum, (void)source, (void)count; }
static void put_float16(uint16_t *t, const float *s, long n, float x) { (void)t, (void)s, (void)n, (void)x; }
#endif

static const uint8_t *slot(const struct engine *e, uint32_t rank, uint32_t number) {
    return e->staging + ((uint64_t)rank * e->slots + number % e->slots) * e->chunk_bytes;
}

/* Do the work of `sum_ranks` for float64. */
static void sum_float64(const struct engine *e, uint32_t number, const struct piece *p, long begin, long end) {
    double sum[BLOCK], scale = 1.0 / p->divisor;
    double *target = (double *)slot(e, e->world, number);
    for (long at = begin; at < end; at += BLOCK) {
        long count = end - at < BLOCK ? end - at : BLOCK;
        memset(sum, 0, sizeof sum);
        for (uint32_t r = 0; r < e->world; r++) {
            const double *source = (const double *)slot(e, r, number) + at;
            for (long i = 0; i < count; i++) sum[i] += source[i];
        }
        for (long i = 0; i < count; i++) target[at + i] = sum[i] * scale;
    }
}

/* result slot[begin:end] = (slot of rank 0 + slot of rank 1 + ...) / divisor, in elements of chunk `number`. The values
 * are added in this order on every rank, in float32 (float64 in float64), and in blocks of BLOCK elements. */
static void sum_ranks(const struct engine *e, uint32_t number, const struct piece *p, long begin, long end) {
    if (p->kind == FLOAT64) {
        sum_float64(e, number, p, begin, end);
        return;
    }
    float sum[BLOCK];
    float scale = 1.0f / (float)p->divisor;
    uint8_t *target = (uint8_t *)slot(e, e->world, number);
    for (long at = begin; at < end; at += BLOCK) {
        long count = end - at < BLOCK ? end - at : BLOCK;
        memset(sum, 0, sizeof(float) * count);
        for (uint32_t r = 0; r < e->world; r++) {
            const uint8_t *source = slot(e, r, number);
            if (p->kind == FLOAT32) add_float32(sum, (const float *)source + at, count);
            else if (p->kind == BFLOAT16) add_bfloat16(sum, (const uint16_t *)source + at, count);
            else add_float16(sum, (const uint16_t *)source + at, count);
        }
        if (p->kind == FLOAT32) put_float32((float *)target + at, sum, count, scale);
        else if (p->kind == BFLOAT16) put_bfloat16((uint16_t *)target + at, sum, count, scale);
        else put_float16((uint16_t *)target + at, sum, count, scale);
    }
}

/* --- loops ------------------------------------------------------------------------------------------------------ */

static struct piece *piece_of(const struct engine *e, uint32_t rank, uint32_t number) {
    return (struct piece *)e->pieces + (uint64_t)rank * e->ring + number % e->ring;
}

/* Return where part `index` of `parts` of a piece begins: at a multiple of 32 elements (a cache line or more). */
static long part_begin(uint32_t count, uint32_t index, uint32_t parts) {
    if (index == parts) return count;
    long at = (long)((uint64_t)count * index / parts);
    return at & ~31L;
}

/* Run a reducing thread: sum its part of the rank's share of each chunk that the coordinator has released. */
int gpudiag_reduce(struct engine *e, uint32_t thread) {
    uint32_t number = load(&e->done[thread].value), rounds = 0;
    for (;;) {
        while (!reached(load(&e->go), number + 1)) {
            if (load(&e->stop)) return STOPPED;
            uint32_t submitted = load(&e->submitted);
            if (submitted == number && rounds > idle_rounds(e)) sleep_until_changed(e, &e->submitted, submitted);
            wait_briefly(e, &rounds);
        }
        rounds = 0;
        struct piece p = *piece_of(e, e->rank, number);
        uint32_t parts = e->world * e->threads, part = e->rank * e->threads + thread;
        sum_ranks(e, number, &p, part_begin(p.count, part, parts), part_begin(p.count, part + 1, parts));
        store(&e->done[thread].value, ++number);
    }
}

/* Run the coordinating thread of a rank: release chunks that have arrived from every rank and whose result slot is free,
 * and publish the progress of the sums to the rank's GPU (`READY`) and to the other ranks (`REDUCED`).
 * Return STOPPED, or MISMATCH + 256 * rank if that rank's chunk differs from this rank's. */
int gpudiag_coordinate(struct engine *e) {
    uint8_t *page_of_rank = e->control + e->rank * e->page_bytes;
    uint32_t go = load(&e->go), reduced = load(page_of_rank + REDUCED), ready = load(page_of_rank + READY), rounds = 0;
    for (;;) {
        if (load(&e->stop)) return STOPPED;
        int moved = 0;
        uint32_t submitted = load(&e->submitted);
        if (go != submitted) {
            /* The previous chunk in this slot used the same lane, because lanes divide slots. */
            uint32_t lane = go % e->lanes * LINE, previous = go + 1 - e->slots;
            int arrived = 1;
            for (uint32_t r = 0; r < e->world && arrived; r++) {
                const uint8_t *page = e->control + r * e->page_bytes;
                arrived = reached(load(page + ARRIVED + lane), go + 1)
                       && reached(load(page + FETCHED + lane), previous);
            }
            if (arrived) {
                const struct piece *own = piece_of(e, e->rank, go);
                for (uint32_t r = 0; r < e->world; r++) {
                    const struct piece *other = piece_of(e, r, go);
                    if (other->count != own->count || other->kind != own->kind) return MISMATCH + 256 * (int)r;
                }
                store(&e->go, ++go);
                moved = 1;
            }
        }
        uint32_t least = go;
        for (uint32_t t = 0; t < e->threads; t++) {
            uint32_t done = load(&e->done[t].value);
            if (!reached(done, least)) least = done;
        }
        if (least != reduced) store(page_of_rank + REDUCED, reduced = least), moved = 1;
        for (uint32_t r = 0; r < e->world; r++) {
            uint32_t reduced_there = load(e->control + r * e->page_bytes + REDUCED);
            if (!reached(reduced_there, least)) least = reduced_there;
        }
        if (least != ready) store(page_of_rank + READY, ready = least), moved = 1;
        if (moved) {
            rounds = 0;
        } else {
            if (ready == submitted && rounds > idle_rounds(e)) sleep_until_changed(e, &e->submitted, submitted);
            wait_briefly(e, &rounds);
        }
    }
}

/* Announce that `number` chunks have been submitted in all; their pieces are in the ring. */
void gpudiag_submit(struct engine *e, uint32_t number) {
    __atomic_store_n(&e->submitted, number, __ATOMIC_SEQ_CST);
    wake(e);
}

void gpudiag_stop(struct engine *e) {
    __atomic_store_n(&e->stop, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &e->submitted, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

/* --- the GPU's queues ------------------------------------------------------------------------------------------- */

typedef int (*wait_value)(void *stream, uint64_t at, uint32_t value, uint32_t flags);
typedef int (*write_value)(void *stream, uint64_t at, uint32_t value, uint32_t flags);
typedef int (*copy_out)(void *host, uint64_t device, size_t bytes, void *stream);
typedef int (*copy_in)(uint64_t device, const void *host, size_t bytes, void *stream);

struct queues {
    wait_value wait;              /* cuStreamWaitValue32_v2 */
    write_value write;            /* cuStreamWriteValue32_v2 */
    copy_out out;                 /* cuMemcpyDtoHAsync_v2 */
    copy_in in;                   /* cuMemcpyHtoDAsync_v2 */
    uint8_t *staging;             /* the slots as the host sees them */
    uint64_t page;                /* the rank's control page as the GPU sees it */
    uint64_t chunk_bytes;
    uint32_t rank, world, slots, lanes;
    void *outgoing[8], *incoming[8];
};

/* Enqueue `count` bytes at `data` as chunks from `number` on, `step` bytes each: copies to this rank's slots and, when
 * every rank has summed its share, back from the result slots. Return CUDA's first error, or 0. */
int gpudiag_queue(const struct queues *q, uint64_t data, uint64_t count, uint64_t step, uint32_t number) {
    for (uint64_t at = 0; at < count; at += step, number++) {
        uint64_t bytes = count - at < step ? count - at : step;
        uint32_t lane = number % q->lanes, slot = number % q->slots;
        void *out = q->outgoing[lane], *in = q->incoming[lane];
        uint8_t *own = q->staging + ((uint64_t)q->rank * q->slots + slot) * q->chunk_bytes;
        uint8_t *result = q->staging + ((uint64_t)q->world * q->slots + slot) * q->chunk_bytes;
        int problem = q->wait(out, q->page + READY, number + 1 - q->slots, 0); /* 0: until at least */
        if (!problem) problem = q->out(own, data + at, bytes, out);
        if (!problem) problem = q->write(out, q->page + ARRIVED + lane * LINE, number + 1, 0);
        if (!problem) problem = q->wait(in, q->page + READY, number + 1, 0);
        if (!problem) problem = q->in(data + at, result, bytes, in);
        if (!problem) problem = q->write(in, q->page + FETCHED + lane * LINE, number + 1, 0);
        if (problem) return problem;
    }
    return 0;
}

int gpudiag_engine_bytes(void) { return sizeof(struct engine); }
int gpudiag_has_float16(void) { return HAS_FLOAT16; }
