// Copies as nvbandwidth 0.8 measures them, in C++: a peer for `gpudiag bandwidth` on machines without nvbandwidth.
//
// Buffers have 512 MiB. A kernel holds the stream until 16 copies are queued, and events before and after the copies
// give their time. A figure is the median of three samples. With all GPUs at once, each GPU in turn is timed. The others
// wait for the same gate, and copy buffers of twice the size, so that they still copy when the timed GPU ends.
//
//     nvcc -O2 -std=c++17 -o copies copies.cu
//     ./copies [MIB [COPIES [all]]]              one line per figure: test, GPU or pair, GB/s; `all`: only all at once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t status = (call);                                                     \
        if (status != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));         \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

namespace {

constexpr int kSamples = 3;
size_t bytes_per_copy = size_t{512} << 20;
int copies_per_sample = 16;

__global__ void hold(const volatile int *gate) {
    while (*gate == 0) {
    }
}

struct Copy {
    int gpu;  // issues the copy
    void *target;
    const void *source;
    size_t bytes;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Return the rate of each of `copies` in GB/s, as the median over samples. All of them start when `gate` becomes 1.
std::vector<double> run(const std::vector<Copy> &copies, volatile int *gate) {
    const size_t count = copies.size();
    std::vector<std::vector<double>> samples(count);
    for (int sample = 0; sample < kSamples; ++sample) {
        std::vector<cudaStream_t> streams(count);
        std::vector<cudaEvent_t> starts(count), ends(count);
        *gate = 0;
        for (size_t i = 0; i < count; ++i) {
            CHECK(cudaSetDevice(copies[i].gpu));
            CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
            CHECK(cudaEventCreate(&starts[i]));
            CHECK(cudaEventCreate(&ends[i]));
            hold<<<1, 1, 0, streams[i]>>>(const_cast<const int *>(gate));
            CHECK(cudaGetLastError());
            CHECK(cudaEventRecord(starts[i], streams[i]));
        }
        for (size_t i = 0; i < count; ++i) {
            CHECK(cudaSetDevice(copies[i].gpu));
            for (int k = 0; k < copies_per_sample; ++k) {
                CHECK(cudaMemcpyAsync(copies[i].target, copies[i].source, copies[i].bytes, cudaMemcpyDefault, streams[i]));
            }
            CHECK(cudaEventRecord(ends[i], streams[i]));
        }
        *gate = 1;
        for (size_t i = 0; i < count; ++i) {
            CHECK(cudaSetDevice(copies[i].gpu));
            CHECK(cudaStreamSynchronize(streams[i]));
            float ms = 0;
            CHECK(cudaEventElapsedTime(&ms, starts[i], ends[i]));
            samples[i].push_back(double(copies[i].bytes) * copies_per_sample / ms / 1e6);
            CHECK(cudaEventDestroy(starts[i]));
            CHECK(cudaEventDestroy(ends[i]));
            CHECK(cudaStreamDestroy(streams[i]));
        }
    }
    std::vector<double> rates;
    for (const auto &each : samples) rates.push_back(median(each));
    return rates;
}

}  // namespace

int main(int count, char **arguments) {
    if (count > 1) bytes_per_copy = std::strtoull(arguments[1], nullptr, 10) << 20;
    if (count > 2) copies_per_sample = std::atoi(arguments[2]);
    const bool only_all = count > 3;
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus));
    volatile int *gate = nullptr;
    CHECK(cudaHostAlloc(reinterpret_cast<void **>(const_cast<int **>(&gate)), sizeof(int), cudaHostAllocPortable));
    std::vector<char *> first(gpus), second(gpus), host(gpus);
    for (int gpu = 0; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaMalloc(&first[gpu], 2 * bytes_per_copy));
        CHECK(cudaMalloc(&second[gpu], bytes_per_copy));
        CHECK(cudaMemset(first[gpu], 0x5a, 2 * bytes_per_copy));
        CHECK(cudaMemset(second[gpu], 0xa5, bytes_per_copy));
        CHECK(cudaHostAlloc(&host[gpu], 2 * bytes_per_copy, cudaHostAllocPortable));
        for (int peer = 0; peer < gpus; ++peer) {
            int reachable = 0;
            if (peer != gpu) CHECK(cudaDeviceCanAccessPeer(&reachable, gpu, peer));
            if (reachable) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
        }
        CHECK(cudaDeviceSynchronize());
    }
    for (int gpu = 0; gpu < gpus && !only_all; ++gpu) {
        std::printf("host_to_device_memcpy_ce %d %.2f\n", gpu, run({{gpu, first[gpu], host[gpu], bytes_per_copy}}, gate)[0]);
        std::printf("device_to_host_memcpy_ce %d %.2f\n", gpu, run({{gpu, host[gpu], first[gpu], bytes_per_copy}}, gate)[0]);
        // Bytes copied, not bytes read plus bytes written.
        std::printf("device_local_copy %d %.2f\n", gpu, run({{gpu, second[gpu], first[gpu], bytes_per_copy}}, gate)[0]);
    }
    for (int gpu = 0; gpu < gpus && !only_all; ++gpu) {
        for (int peer = 0; peer < gpus; ++peer) {
            if (peer == gpu) continue;
            std::printf("device_to_device_memcpy_read_ce %d<-%d %.2f\n", gpu, peer,
                        run({{gpu, second[gpu], first[peer], bytes_per_copy}}, gate)[0]);
            std::printf("device_to_device_memcpy_write_ce %d->%d %.2f\n", gpu, peer,
                        run({{gpu, second[peer], first[gpu], bytes_per_copy}}, gate)[0]);
        }
    }
    for (int to_host = 0; to_host < 2; ++to_host) {
        double sum = 0;
        for (int timed = 0; timed < gpus; ++timed) {
            std::vector<Copy> copies;
            for (int i = 0; i < gpus; ++i) {
                const int gpu = (timed + i) % gpus;
                void *target = to_host ? host[gpu] : first[gpu];
                const void *source = to_host ? first[gpu] : host[gpu];
                copies.push_back({gpu, target, source, i == 0 ? bytes_per_copy : 2 * bytes_per_copy});
            }
            sum += run(copies, gate)[0];
        }
        std::printf("%s all %.2f\n", to_host ? "all_to_host_memcpy_ce" : "host_to_all_memcpy_ce", sum);
    }
    return 0;
}
