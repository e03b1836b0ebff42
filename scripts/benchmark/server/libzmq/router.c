/* libzmq's ROUTER, for scripts/bench: router THREADS [curve] | version.
 *
 * It sends every message back, without a copy. What it says and which orders it
 * takes is in ../doc.go. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zmq.h>

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "libzmq router: %s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(1);
}

static void set(void *socket, int option, int value, const char *what) {
    check(zmq_setsockopt(socket, option, &value, sizeof value) == 0, what);
}

static void *obey(void *unused) {
    char order[256];
    (void)unused;
    while (fgets(order, sizeof order, stdin)) {
        if (strcmp(order, "settle\n") == 0) {
            malloc_trim(0);
            puts("done");
        } else {
            printf("cannot do %s", order);
        }
    }
    exit(0);
}

static void allow_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    int curve = argc > 2 && strcmp(argv[2], "curve") == 0;
    char public[41] = "", secret[41], endpoint[256];
    size_t size = sizeof endpoint;
    pthread_t orders;

    if (argc > 1 && strcmp(argv[1], "version") == 0) {
        int major, minor, patch;
        zmq_version(&major, &minor, &patch);
        return printf("%d.%d.%d\n", major, minor, patch) < 0;
    }
    check(threads > 0, "usage: router THREADS [curve] | version");
    allow_files();
    setvbuf(stdout, NULL, _IOLBF, 0);
    void *context = zmq_ctx_new();
    check(context && zmq_ctx_set(context, ZMQ_IO_THREADS, threads) == 0, "threads");
    void *router = zmq_socket(context, ZMQ_ROUTER);
    check(router != NULL, "socket");
    set(router, ZMQ_BACKLOG, 4096, "backlog");
    if (curve) {
        check(zmq_curve_keypair(public, secret) == 0, "key pair");
        set(router, ZMQ_CURVE_SERVER, 1, "curve");
        check(zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, secret, sizeof secret) == 0, "key");
    }
    check(zmq_bind(router, "tcp://127.0.0.1:*") == 0, "bind");
    check(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &size) == 0, "endpoint");
    printf("ready %s %s\n", endpoint + strlen("tcp://"), public);
    check(pthread_create(&orders, NULL, obey, NULL) == 0, "thread");

    zmq_msg_t frame;
    check(zmq_msg_init(&frame) == 0, "message");
    for (;;) {
        check(zmq_msg_recv(&frame, router, 0) >= 0, "receive");
        int more = zmq_msg_more(&frame) ? ZMQ_SNDMORE : 0;
        check(zmq_msg_send(&frame, router, more) >= 0, "send");
    }
}
