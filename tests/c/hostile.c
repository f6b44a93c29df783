/* Strangers at every listening port: random bytes, huge lengths, silence, half-open connections. The job goes on.
 * RUN: ranks=3 fabrics=tcp,shm only=banyan */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

enum { PORTS = 16, GUESTS = 40 };

/* The ports that this process listens on. */
static int listening(int ports[PORTS])
{
    int count = 0;
    for (int fd = 0; fd < 1024 && count < PORTS; fd++) {
        int listens = 0;
        struct sockaddr_storage address;
        socklen_t size = sizeof listens, length = sizeof address;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
            continue;
        if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
            continue;
        if (address.ss_family == AF_INET)
            ports[count++] = ntohs(((struct sockaddr_in *)&address)->sin_port);
        else if (address.ss_family == AF_INET6)
            ports[count++] = ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    }
    return count;
}

/* One stranger of the given kind; returns a socket that is left open, or -1. */
static int guest(int port, int kind)
{
    static const unsigned char huge[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3};
    unsigned char noise[3000];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return fd;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rand();
    switch (kind % 5) {
    case 0: (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL | MSG_DONTWAIT); break;
    case 1: (void)!send(fd, huge, sizeof huge, MSG_NOSIGNAL | MSG_DONTWAIT); break;
    case 2: (void)!send(fd, noise, 1, MSG_NOSIGNAL | MSG_DONTWAIT); break; /* and no more */
    case 3: break;                                                         /* silence */
    case 4: shutdown(fd, SHUT_WR); break;
    }
    if (kind % 2 == 0)
        return fd;
    close(fd);
    return -1;
}

/* Everyone sends to everyone and checks what comes. */
static void exchange(int rank, int ranks, int round)
{
    enum { SIZE = 30000 };
    static unsigned char out[SIZE], in[SIZE];
    fill(out, SIZE, rank + round);
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        MPI_Sendrecv(out, SIZE, MPI_BYTE, to, round, in, SIZE, MPI_BYTE, from, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(wrong(in, SIZE, from + round) == 0);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    int ports[PORTS] = {0}, open[PORTS * GUESTS], left = 0;
    int count = listening(ports);
    for (int i = 0; i < count; i++) /* before the first contact with a peer */
        for (int kind = 0; kind < GUESTS / 2; kind++)
            open[left++] = guest(ports[i], kind);
    exchange(rank, ranks, 0);
    for (int i = 0; i < count; i++) /* and after it */
        for (int kind = 0; kind < GUESTS / 2; kind++)
            open[left++] = guest(ports[i], kind);
    for (int round = 1; round < 50; round++)
        exchange(rank, ranks, round);
    for (int i = 0; i < left; i++)
        if (open[i] >= 0)
            close(open[i]);
    exchange(rank, ranks, 50);
    if (getenv("BANYAN_FABRICS") != NULL && strcmp(getenv("BANYAN_FABRICS"), "tcp") == 0)
        CHECK(count > 0); /* otherwise nothing was tested */
    return finish();
}
