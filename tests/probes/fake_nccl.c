/* Enough of NCCL to run the all-reduce probe's own logic where there is no GPU: "device" pointers are host memory, and a
 * group's all-reduces happen when it ends. Prototypes as in nccl.h. FAKE_NCCL=wrong spoils one value of each result. */
#include <stdlib.h>
#include <string.h>

typedef struct { int rank, ranks; } Comm;
typedef Comm *ncclComm_t;
static struct { const float *send; float *recv; size_t count; } pending[64];
static int queued;

int ncclGetVersion(int *version) { *version = 22707; return 0; }
const char *ncclGetErrorString(int code) { return code ? "fake failure" : "no error"; }
int ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    const char *algorithm = getenv("NCCL_ALGO");
    if (algorithm && !strcmp(algorithm, "Tree") && getenv("FAKE_NCCL_NO_TREE")) return 5;
    for (int i = 0; i < count; i++) {
        if (devices[i] != i) return 4;
        comms[i] = malloc(sizeof(Comm));
        comms[i]->rank = i;
        comms[i]->ranks = count;
    }
    return 0;
}
int ncclCommDestroy(ncclComm_t comm) { free(comm); return 0; }
int ncclGroupStart(void) { queued = 0; return 0; }
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int operation, ncclComm_t comm, void *stream) {
    if (type != 7 || operation != 0 || !stream) return 4;
    pending[comm->rank].send = send;
    pending[comm->rank].recv = recv;
    pending[comm->rank].count = count;
    queued++;
    return 0;
}
int ncclGroupEnd(void) {
    for (size_t i = 0; i < pending[0].count; i++) {
        float sum = 0;
        for (int rank = 0; rank < queued; rank++) sum += pending[rank].send[i];
        for (int rank = 0; rank < queued; rank++) pending[rank].recv[i] = sum;
    }
    const char *how = getenv("FAKE_NCCL");
    if (how && !strcmp(how, "wrong")) pending[0].recv[pending[0].count / 2] += 1;
    return 0;
}
