/* Preloaded: what would listen on every interface is bound to the loopback address. TensorFlow's servers take no address
 * to listen on, and ask nobody who they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

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
            /* A socket for both takes 127.0.0.1 as ::ffff:127.0.0.1. */
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
