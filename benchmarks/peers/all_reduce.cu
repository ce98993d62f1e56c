// All-reduce as nccl-tests measures it, in C++: a peer for `gpudiag bandwidth` on machines without nccl-tests.
//
// One process has all GPUs. It sums fp32 values out of place; each repetition is one group call over the GPUs. After five
// repetitions for warming up, the host times twenty between two synchronizations.
//
//     nvcc -O2 -std=c++17 -I NCCL/include -o all_reduce all_reduce.cu -Xlinker NCCL/lib/libnccl.so.2
//     ./all_reduce 65536 33554432                one line per size: bytes, microseconds, bus bandwidth in GB/s
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t status = (call);                                                     \
        if (status != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));         \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)
#define CHECK_NCCL(call)                                                                 \
    do {                                                                                 \
        ncclResult_t status = (call);                                                    \
        if (status != ncclSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(status));         \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

int main(int count, char **arguments) {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus));
    std::vector<size_t> sizes;
    size_t largest = 0;
    for (int i = 1; i < count; ++i) {
        sizes.push_back(std::strtoull(arguments[i], nullptr, 10));
        largest = sizes.back() > largest ? sizes.back() : largest;
    }
    std::vector<ncclComm_t> comms(gpus);
    CHECK_NCCL(ncclCommInitAll(comms.data(), gpus, nullptr));
    std::vector<float *> sources(gpus), targets(gpus);
    std::vector<cudaStream_t> streams(gpus);
    for (int gpu = 0; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaMalloc(&sources[gpu], largest));
        CHECK(cudaMalloc(&targets[gpu], largest));
        CHECK(cudaMemset(sources[gpu], 0, largest));
        CHECK(cudaStreamCreateWithFlags(&streams[gpu], cudaStreamNonBlocking));
    }
    auto repeat = [&](size_t bytes, int times) {
        for (int k = 0; k < times; ++k) {
            CHECK_NCCL(ncclGroupStart());
            for (int gpu = 0; gpu < gpus; ++gpu) {
                CHECK_NCCL(ncclAllReduce(sources[gpu], targets[gpu], bytes / sizeof(float), ncclFloat, ncclSum, comms[gpu],
                                         streams[gpu]));
            }
            CHECK_NCCL(ncclGroupEnd());
        }
        for (int gpu = 0; gpu < gpus; ++gpu) {
            CHECK(cudaSetDevice(gpu));
            CHECK(cudaStreamSynchronize(streams[gpu]));
        }
    };
    constexpr int kTimes = 20;
    for (size_t bytes : sizes) {
        repeat(bytes, 5);
        const auto start = std::chrono::steady_clock::now();
        repeat(bytes, kTimes);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        const double seconds = elapsed.count() / kTimes;
        std::printf("%zu %.2f %.2f\n", bytes, seconds * 1e6, double(bytes) / seconds * 2 * (gpus - 1) / gpus / 1e9);
    }
    for (auto comm : comms) CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
