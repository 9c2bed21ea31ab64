/* A model server with an exact schedule, for measuring load generators against. Built and started by exact.py.
 *
 *   exact_server TTFT_US GAP_US [LOG]      prints its port; ends when its standard input does; loopback only
 *
 * POST to any path, with "stream" and "max_tokens" in the body, is answered as /v1/chat/completions. Token i of a stream
 * is due at (request read) + TTFT + i * GAP, on an absolute schedule, so that lateness does not add up; it is stamped just
 * before its send(), one send() a token, and no reader can have it earlier. Without streaming the answer is due at once
 * after TTFT. One thread, one epoll, one heap of deadlines in nanoseconds.
 * LOG gets a line an answer: X-Request-Id, and CLOCK_MONOTONIC in ns of the request's last byte and of each token.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REQUEST = 16384, MAX_TOKENS = 4096, MAX_EVENTS = 256 };

#define CHUNK "{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":["
static const char HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char TOKEN[] = CHUNK "{\"index\":0,\"delta\":{\"content\":\" the\"},\"finish_reason\":null}]}";
static const char FINISH[] = CHUNK "{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}";
static const char USAGE[] = CHUNK "],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,\"total_tokens\":%d}}";

struct client {
    int fd, place, watches_output; /* place in the heap, -1: no deadline */
    int streams, n_tokens, n_sent, busy;
    uint64_t due, received;
    char id[80];
    size_t n_in, n_out;
    char in[MAX_REQUEST + 1];
    char *out; /* what the kernel would not take yet */
    uint64_t sent[MAX_TOKENS];
};

static uint64_t ttft, gap;
static FILE *answers;
static int poller, n_waiting, room_waiting;
static struct client **waiting;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* -- deadlines: a binary heap, the soonest first -- */

static void place(int at, struct client *c)
{
    waiting[at] = c;
    c->place = at;
}

static void settle(int at, struct client *c)
{
    for (int above = (at - 1) / 2; at > 0 && c->due < waiting[above]->due; above = (at - 1) / 2) {
        place(at, waiting[above]);
        at = above;
    }
    for (int below = 2 * at + 1; below < n_waiting; below = 2 * at + 1) {
        if (below + 1 < n_waiting && waiting[below + 1]->due < waiting[below]->due)
            below++;
        if (c->due <= waiting[below]->due)
            break;
        place(at, waiting[below]);
        at = below;
    }
    place(at, c);
}

static void wait_until(struct client *c, uint64_t due)
{
    if (n_waiting == room_waiting) {
        room_waiting = room_waiting ? 2 * room_waiting : 1024;
        waiting = realloc(waiting, (size_t)room_waiting * sizeof *waiting);
    }
    c->due = due;
    n_waiting++;
    settle(n_waiting - 1, c);
}

static void forget(struct client *c)
{
    int at = c->place;
    if (at < 0)
        return;
    c->place = -1;
    struct client *last = waiting[--n_waiting];
    if (last != c)
        settle(at, last);
}

/* -- bytes out -- */

static void watch(struct client *c, int output)
{
    struct epoll_event event = {.events = EPOLLIN | (output ? EPOLLOUT : 0), .data.ptr = c};
    if (c->watches_output != output)
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
    c->watches_output = output;
}

/* 0: the client is gone */
static int give(struct client *c, const char *bytes, size_t n)
{
    ssize_t done = c->n_out ? 0 : send(c->fd, bytes, n, MSG_NOSIGNAL);
    if (done < 0 && errno != EAGAIN)
        return 0;
    if (done < 0)
        done = 0;
    if ((size_t)done < n) {
        c->out = realloc(c->out, c->n_out + n);
        memcpy(c->out + c->n_out, bytes + done, n - (size_t)done);
        c->n_out += n - (size_t)done;
        watch(c, 1);
    }
    return 1;
}

static int give_rest(struct client *c)
{
    ssize_t done = send(c->fd, c->out, c->n_out, MSG_NOSIGNAL);
    if (done < 0)
        return errno == EAGAIN;
    c->n_out -= (size_t)done;
    memmove(c->out, c->out + done, c->n_out);
    if (!c->n_out)
        watch(c, 0);
    return 1;
}

static size_t event(char *to, const char *json)
{
    return (size_t)sprintf(to, "%zx\r\ndata: %s\n\n\r\n", strlen(json) + 8, json);
}

/* -- answers -- */

static void note(struct client *c)
{
    if (!answers)
        return;
    fprintf(answers, "%s %llu", c->id, (unsigned long long)c->received);
    for (int i = 0; i < c->n_sent; i++)
        fprintf(answers, " %llu", (unsigned long long)c->sent[i]);
    fputc('\n', answers);
}

static int give_end(struct client *c)
{
    char usage[512], bytes[2048];
    size_t n = event(bytes, FINISH);
    sprintf(usage, USAGE, c->n_sent, c->n_sent + 9);
    n += event(bytes + n, usage);
    n += event(bytes + n, "[DONE]");
    memcpy(bytes + n, "0\r\n\r\n", 5);
    return give(c, bytes, n + 5);
}

static int give_whole(struct client *c)
{
    char body[512], bytes[1024];
    int length = sprintf(body,
                         "{\"id\":\"c-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
                         "\"message\":{\"role\":\"assistant\",\"content\":\" the the the the\"},\"finish_reason\":\"stop\"}],"
                         "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,\"total_tokens\":%d}}",
                         c->n_tokens, c->n_tokens + 9);
    int n = sprintf(bytes, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, body);
    c->sent[0] = now();
    c->n_sent = 1;
    return give(c, bytes, (size_t)n);
}

/* What is due; then the next deadline, or the end of the answer. 0: the client is gone. */
static int go_on(struct client *c)
{
    static char token[512], first[1024];
    static size_t n_token, n_first;
    if (!n_token) {
        n_token = event(token, TOKEN);
        n_first = (size_t)sprintf(first, "%s%s", HEAD, token);
    }
    if (c->streams) {
        while (c->n_sent < c->n_tokens) {
            uint64_t due = c->received + ttft + gap * (uint64_t)c->n_sent, t = now();
            if (due > t) {
                wait_until(c, due);
                return 1;
            }
            int is_first = c->n_sent == 0;
            c->sent[c->n_sent++] = t;
            if (!give(c, is_first ? first : token, is_first ? n_first : n_token))
                return 0;
        }
        if (!give_end(c))
            return 0;
    } else if (!give_whole(c)) {
        return 0;
    }
    note(c);
    c->busy = 0;
    return 1;
}

/* -- requests -- */

static long number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtol(at + strlen(name) + strspn(at + strlen(name), ": "), NULL, 10) : -1;
}

/* Starts the answer to the request in c->in, if it is there whole. 0: the client is gone, or is none of ours. */
static int begin(struct client *c)
{
    c->in[c->n_in] = 0;
    char *body = c->busy ? NULL : strstr(c->in, "\r\n\r\n");
    if (!body)
        return c->n_in < MAX_REQUEST;
    body += 4;
    char *length = strcasestr(c->in, "\r\ncontent-length:"), *id = strcasestr(c->in, "\r\nx-request-id:");
    size_t whole = (size_t)(body - c->in) + (length && length < body ? strtoul(length + 17, NULL, 10) : 0);
    if (whole > MAX_REQUEST)
        return 0;
    if (c->n_in < whole)
        return 1;
    c->received = now();
    c->busy = 1;
    c->n_sent = 0;
    char *streams = strstr(body, "\"stream\"");
    c->streams = streams && !strncmp(streams + 8 + strspn(streams + 8, ": "), "true", 4);
    long asked = number_after(body, "\"max_tokens\"");
    c->n_tokens = asked < 1 ? 1 : asked > MAX_TOKENS ? MAX_TOKENS : (int)asked;
    strcpy(c->id, "-");
    if (id && id < body)
        sscanf(id + 15, " %79[^\r]", c->id);
    c->n_in -= whole;
    memmove(c->in, c->in + whole, c->n_in);
    if (ttft) {
        wait_until(c, c->received + ttft);
        return 1;
    }
    return go_on(c);
}

static int take(struct client *c)
{
    ssize_t n = recv(c->fd, c->in + c->n_in, MAX_REQUEST - c->n_in, 0);
    if (n < 0)
        return errno == EAGAIN;
    c->n_in += (size_t)n;
    return n && begin(c);
}

static void leave(struct client *c)
{
    forget(c);
    close(c->fd);
    free(c->out);
    free(c);
}

static void welcome(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct client *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->place = -1;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static int listen_here(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (void *)&address, size) || listen(listener, 4096) || getsockname(listener, (void *)&address, &size)) {
        perror("exact_server");
        exit(1);
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int n_words, char **words)
{
    if (n_words < 3)
        return 2;
    ttft = strtoull(words[1], NULL, 10) * 1000;
    gap = strtoull(words[2], NULL, 10) * 1000;
    answers = n_words > 3 ? fopen(words[3], "w") : NULL;
    if (answers)
        setvbuf(answers, NULL, _IOFBF, 1 << 22);
    prctl(PR_SET_TIMERSLACK, 1UL); /* ns; 50,000 by default */
    static struct client end, door; /* only their addresses count */
    int listener = listen_here();
    poller = epoll_create1(0);
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &door});
    epoll_ctl(poller, EPOLL_CTL_ADD, 0, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &end});
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        uint64_t t = now(), rest = n_waiting && waiting[0]->due > t ? waiting[0]->due - t : 0;
        struct timespec limit = {.tv_sec = (time_t)(rest / 1000000000u), .tv_nsec = (long)(rest % 1000000000u)};
        int n = epoll_pwait2(poller, events, MAX_EVENTS, n_waiting ? &limit : NULL, NULL);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (c == &end) {
                if (answers)
                    fclose(answers);
                return 0;
            }
            if (c == &door)
                welcome(listener);
            else if ((events[i].events & EPOLLOUT && !give_rest(c)) || (events[i].events & ~EPOLLOUT && !take(c)))
                leave(c);
        }
        for (t = now(); n_waiting && waiting[0]->due <= t;) {
            struct client *c = waiting[0];
            forget(c);
            if (!go_on(c) || (!c->busy && c->n_in && !begin(c)))
                leave(c);
        }
    }
}
