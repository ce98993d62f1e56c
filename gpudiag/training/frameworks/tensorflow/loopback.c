/* A library for LD_PRELOAD. Sockets that would listen on every interface are bound to the loopback address, and
 * connections of other users of the host are closed. TensorFlow's servers have neither an option for the address nor an
 * authentication. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* An IPv4 or IPv6 address in hexadecimal, as in /proc/net/tcp and tcp6, and a port. */
struct place {
    char address[33];
    unsigned port;
};

/* The first 96 bits of an IPv6 address that stands for an IPv4 address. */
static const char MAPPED[] = "0000000000000000FFFF0000";

/* Convert an address. Return 0 if it belongs neither to IPv4 nor to IPv6. */
static int place_of(const struct sockaddr_storage *from, struct place *into) {
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)from;
        snprintf(into->address, sizeof into->address, "%08X", four->sin_addr.s_addr);
        into->port = ntohs(four->sin_port);
        return 1;
    }
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
        unsigned words[4];
        memcpy(words, &six->sin6_addr, sizeof words);
        snprintf(into->address, sizeof into->address, "%08X%08X%08X%08X", words[0], words[1], words[2], words[3]);
        into->port = ntohs(six->sin6_port);
        return 1;
    }
    return 0;
}

/* Compare addresses and ports. An IPv4 address equals the IPv6 address that stands for it. */
static int same(const struct place *a, const char *address, unsigned port) {
    const char *left = strncmp(a->address, MAPPED, 24) == 0 && strlen(a->address) == 32 ? a->address + 24 : a->address;
    const char *right = strncmp(address, MAPPED, 24) == 0 && strlen(address) == 32 ? address + 24 : address;
    return a->port == port && strcmp(left, right) == 0;
}

/* Return whether the peer's socket belongs to this user or to root. `table` is the kernel's list of sockets. A socket
 * with inode 0 has been closed, so its owner is unknown. */
static int is_ours(const char *table, const struct place *peer, const struct place *here) {
    FILE *lines = fopen(table, "re");
    if (!lines)
        return 0;
    char line[512], local[33], remote[33];
    unsigned local_port, remote_port, user;
    unsigned long inode;
    int ours = 0;
    while (!ours && fgets(line, sizeof line, lines))
        if (sscanf(line, " %*u: %32[0-9A-F]:%x %32[0-9A-F]:%x %*x %*x:%*x %*x:%*x %*x %u %*d %lu", local, &local_port,
                   remote, &remote_port, &user, &inode) == 6 &&
            same(peer, local, local_port) && same(here, remote, remote_port))
            ours = inode != 0 && (user == geteuid() || user == 0);
    fclose(lines);
    return ours;
}

/* Return whether a connection may stay open. */
static int is_admitted(int connection) {
    struct sockaddr_storage peer, here;
    socklen_t of_peer = sizeof peer, of_here = sizeof here;
    struct place from, to;
    if (getpeername(connection, (struct sockaddr *)&peer, &of_peer) ||
        getsockname(connection, (struct sockaddr *)&here, &of_here))
        return 0;
    if (!place_of(&peer, &from) || !place_of(&here, &to))
        return 1; /* not a network connection, for example a Unix socket */
    return is_ours("/proc/self/net/tcp", &from, &to) || is_ours("/proc/self/net/tcp6", &from, &to);
}

/* Accept a connection. Close connections that are not admitted, and wait for the next. */
int accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags) {
    int (*plain)(int, struct sockaddr *, socklen_t *, int);
    *(void **)&plain = dlsym(RTLD_NEXT, "accept4");
    socklen_t room = length ? *length : 0;
    for (;;) {
        int connection = plain(descriptor, address, length, flags);
        if (connection < 0 || is_admitted(connection))
            return connection;
        close(connection);
        if (length)
            *length = room;
    }
}

int accept(int descriptor, struct sockaddr *address, socklen_t *length) {
    return accept4(descriptor, address, length, 0);
}

/* Bind a socket. If the address means every interface, use the loopback address instead. */
int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    int (*plain)(int, const struct sockaddr *, socklen_t);
    *(void **)&plain = dlsym(RTLD_NEXT, "bind");
    if (address && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in here;
        memcpy(&here, address, sizeof here);
        if (here.sin_addr.s_addr == htonl(INADDR_ANY)) {
            here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return plain(descriptor, (struct sockaddr *)&here, sizeof here);
        }
    }
    if (address && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 here;
        memcpy(&here, address, sizeof here);
        if (IN6_IS_ADDR_UNSPECIFIED(&here.sin6_addr)) {
            int only6 = 0;
            socklen_t size = sizeof only6;
            getsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only6, &size);
            /* A socket for IPv6 and IPv4 listens on 127.0.0.1 as ::ffff:127.0.0.1. */
            static const unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1};
            if (only6)
                here.sin6_addr = in6addr_loopback;
            else
                memcpy(&here.sin6_addr, mapped, sizeof mapped);
            return plain(descriptor, (struct sockaddr *)&here, sizeof here);
        }
    }
    return plain(descriptor, address, length);
}
