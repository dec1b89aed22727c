/* SPDX-License-Identifier: BSD-3-Clause */
/* Datagram sockets between ranks and tprun, and their names. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/door.h"
#include "runtime/base/io.h"

const char tpb_door_magic[4] = { 't', 'p', 'd', 'r' };

void tpb_door_format(const struct tpb_door *door, char *text, size_t size)
{
    int used = snprintf(text, size, "%d:%d:%llu:%d:%s:", door->host,
                        door->launcher,
                        (unsigned long long)door->net_namespace, door->size,
                        door->name);

    for (size_t i = 0; i < sizeof(door->cookie); i++)
        used += snprintf(text + used, size - (size_t)used, "%02x",
                         door->cookie[i]);
    used += snprintf(text + used, size - (size_t)used, ":");
    for (size_t i = 0; i < sizeof(door->boot_id); i++)
        used += snprintf(text + used, size - (size_t)used, "%02x",
                         door->boot_id[i]);
}

bool tpb_door_parse(const char *text, struct tpb_door *door)
{
    unsigned long long net;
    int used = 0;

    memset(door, 0, sizeof(*door));
    if (sscanf(text, "%d:%d:%llu:%d:%47[a-z0-9-]:%n", &door->host,
               &door->launcher, &net, &door->size, door->name, &used) != 5
        || used == 0 || strlen(text + used) != 65 || text[used + 32] != ':'
        || door->host < 3 || door->launcher < 3 || door->size < 1)
        return false;
    door->net_namespace = net;
    return tpb_hex(text + used, sizeof(door->cookie), door->cookie)
           && tpb_hex(text + used + 33, sizeof(door->boot_id),
                      door->boot_id);
}

/* Which network namespace made the socket; 0 before Linux 5.14. */
static uint64_t door_net_cookie(int fd)
{
    uint64_t cookie = 0;
    socklen_t length = sizeof(cookie);

    return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0
           ? cookie : 0;
}

bool tpb_door_apart(const struct tpb_door *door)
{
    uint64_t mine = tpb_net_namespace(), theirs = door->net_namespace;

    if (mine == 0 || theirs == 0) {
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        mine = door_net_cookie(fd);
        theirs = door_net_cookie(door->launcher);
        tpb_close(&fd);
    }
    return mine != 0 && theirs != 0 && mine != theirs;
}

socklen_t tpb_door_address(const char *name, struct sockaddr_storage *address)
{
    struct sockaddr_un *un = (struct sockaddr_un *)address;

    memset(address, 0, sizeof(*address));
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path + 1, name, strlen(name));  /* a NUL first: no file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
                       + strlen(name));
}

static bool door_bind(int fd, char name[TPB_DOOR_NAME])
{
    struct sockaddr_storage address;
    uint8_t random[16];
    socklen_t length;

    tpb_random(random, sizeof(random));
    memcpy(name, "tp-door-", 9);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(name + 8 + 2 * i, 3, "%02x", random[i]);
    length = tpb_door_address(name, &address);
    return bind(fd, (struct sockaddr *)&address, length) == 0;
}

int tpb_door_open(char name[TPB_DOOR_NAME])
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && !door_bind(fd, name))
        tpb_close(&fd);
    return fd;
}

/* The descriptor may be anything: a program in between may have closed what it
 * inherited, and opened something else. */
bool tpb_door_take(int fd, char name[TPB_DOOR_NAME])
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address), size = sizeof(int);
    int type = 0;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0
           && type == SOCK_DGRAM
           && getsockname(fd, (struct sockaddr *)&address, &length) == 0
           && address.ss_family == AF_UNIX
           && length == offsetof(struct sockaddr_un, sun_path)
           && door_bind(fd, name) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0
           && fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

/* Connected, since only then does epoll tell of room at the other end; and
 * nobody else's words arrive. */
int tpb_door_enter(const struct tpb_door *door)
{
    struct sockaddr_storage name;
    socklen_t length = tpb_door_address(door->name, &name);
    char own[TPB_DOOR_NAME];
    int fd = door->launcher;

    if (!tpb_door_take(fd, own))
        fd = tpb_door_open(own);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) < 0) {
        int code = errno;

        tpb_close(&fd);
        errno = code;
    }
    return fd;
}

uint64_t tpb_net_namespace(void)
{
    struct stat status;

    return stat("/proc/self/ns/net", &status) == 0 ? (uint64_t)status.st_ino
                                                   : 0;
}
