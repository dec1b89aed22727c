/* SPDX-License-Identifier: BSD-3-Clause */
/* Datagram sockets between ranks and tprun, and their names. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/door.h"
#include "runtime/base/io.h"

const char tpb_door_magic[4] = { 't', 'p', 'd', 'r' };

static const char door_version[] = ":2";

enum { DOOR_PATIENCE_MS = 5000 };

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
    snprintf(text + used, size - (size_t)used, "%s", door_version);
}

bool tpb_door_parse(const char *text, struct tpb_door *door)
{
    unsigned long long net;
    int used = 0;

    memset(door, 0, sizeof(*door));
    if (sscanf(text, "%d:%d:%llu:%d:%47[a-z0-9-]:%n", &door->host,
               &door->launcher, &net, &door->size, door->name, &used) != 5
        || used == 0 || strlen(text + used) != 65 + strlen(door_version)
        || text[used + 32] != ':' || strcmp(text + used + 65, door_version) != 0
        || door->host < 3 || door->launcher < 3 || door->size < 1)
        return false;
    door->net_namespace = net;
    return tpb_hex(text + used, sizeof(door->cookie), door->cookie)
           && tpb_hex(text + used + 33, sizeof(door->boot_id),
                      door->boot_id);
}

bool tpb_door_of_job(const char *text, const char *job, struct tpb_door *door)
{
    return tpb_door_parse(text, door) && strcmp(door->name, job) == 0;
}

void tpb_door_program(uint8_t program[8])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t word[8];
    static pid_t owner;

    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        tpb_random(word, sizeof(word));
        word[0] |= 1;              /* zeros are nobody's */
        owner = getpid();
    }
    memcpy(program, word, sizeof(word));
    pthread_mutex_unlock(&lock);
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

static bool door_bind_name(int fd, const char *name)
{
    struct sockaddr_storage address;
    socklen_t length = tpb_door_address(name, &address);

    return bind(fd, (struct sockaddr *)&address, length) == 0;
}

static bool door_bind(int fd, char name[TPB_DOOR_NAME])
{
    uint8_t random[16];

    tpb_random(random, sizeof(random));
    memcpy(name, "tp-door-", 9);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(name + 8 + 2 * i, 3, "%02x", random[i]);
    return door_bind_name(fd, name);
}

int tpb_door_open(char name[TPB_DOOR_NAME])
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && !door_bind(fd, name))
        tpb_close(&fd);
    return fd;
}

/* Then the kernel says who sent what. */
static bool door_asks_names(int fd)
{
    int on = 1;

    return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0;
}

int tpb_door_open_for(const char *job, char name[TPB_DOOR_NAME])
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(name, TPB_DOOR_NAME, "%s", job);
    if (fd >= 0 && (!door_asks_names(fd) || !door_bind_name(fd, name)))
        tpb_close(&fd);
    return fd;
}

ssize_t tpb_door_receive(int fd, void *data, size_t length,
                         struct sockaddr_storage *from, socklen_t *from_length,
                         bool *trusted)
{
    union {
        char space[CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec part = { data, length };
    struct msghdr message = { .msg_name = from, .msg_iov = &part,
                              .msg_namelen = sizeof(*from), .msg_iovlen = 1,
                              .msg_control = control.space,
                              .msg_controllen = sizeof(control.space) };
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    struct ucred sender;

    *trusted = false;
    if (got < 0)
        return got;
    *from_length = message.msg_namelen;
    if (header != NULL && header->cmsg_level == SOL_SOCKET
        && header->cmsg_type == SCM_CREDENTIALS) {
        memcpy(&sender, CMSG_DATA(header), sizeof(sender));
        *trusted = sender.uid == getuid();
    }
    return got;
}

/* The answer's text, whose sender must be of our user, too. */
static bool door_answered(int fd, char *text, size_t size)
{
    char bytes[sizeof(struct tpb_door_message) + TPB_DOOR_TEXT];
    struct tpb_door_message message;
    struct sockaddr_storage from;
    socklen_t length;
    bool trusted;
    ssize_t got = tpb_door_receive(fd, bytes, sizeof(bytes) - 1, &from,
                                   &length, &trusted);

    if (got < (ssize_t)sizeof(message) || !trusted)
        return false;
    bytes[got] = '\0';
    memcpy(&message, bytes, sizeof(message));
    snprintf(text, size, "%s", bytes + sizeof(message));
    return message.type == TPB_DOOR_WHERE && *text != '\0';
}

bool tpb_door_ask(const char *job, char *text, size_t size)
{
    struct tpb_door_message message = { .type = TPB_DOOR_WHERE };
    struct sockaddr_storage address;
    char name[TPB_DOOR_NAME];
    bool asked = false;
    socklen_t length;
    int fd;

    if (strlen(job) >= sizeof(name) || (fd = tpb_door_open(name)) < 0)
        return false;
    length = tpb_door_address(job, &address);
    memcpy(message.magic, tpb_door_magic, sizeof(message.magic));
    if (door_asks_names(fd) && fcntl(fd, F_SETFL, 0) == 0
        && connect(fd, (struct sockaddr *)&address, length) == 0
        && tpb_send_fds(fd, &message, sizeof(message), NULL, 0) > 0
        && tpb_await(fd, DOOR_PATIENCE_MS))
        asked = door_answered(fd, text, size);
    tpb_close(&fd);
    return asked;
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
