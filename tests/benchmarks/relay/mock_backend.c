// mock_backend.c -- a fast OpenAI/vLLM-shaped SSE server (single-threaded epoll).
//
//   mock_backend [-p port] [-n chunks] [-i interval_us] [-T ttft_us] [-L] [-m model]
//
// POST /v1/chat/completions (or /v1/completions)
//     "stream": true  -> role chunk + N content chunks + usage chunk + [DONE];
//                        one HTTP chunk and one write() each.  N = "max_tokens" of the
//                        request (or "max_completion_tokens"), else -n.
//                        every content chunk carries "@<16 hex digits>" = CLOCK_MONOTONIC ns
//                        at the time of the write, so the load generator can tell relay latency.
//     otherwise       -> one ~600-byte JSON.
//     Every chunk carries usage, as with continuous_usage_stats: whoever counts tokens can do so per chunk.
// GET /health /v1/models /metrics
// GET /_ctl?interval_us=20000&ttft_us=0&lockstep=0&chunks=256&die_after=0&reset=1
//     interval_us=0: as fast as possible (round-robin, one write per chunk)
//     lockstep=1   : all streams emit together at every interval (as one vLLM engine step does)
//     die_after=K  : close the connection (RST) after K content chunks, without an end
// GET /_stats  -> {"active":..,"started":..,"completed":..,"aborted":..,"chunks":..,...}
#include "common.h"
#include <sys/syscall.h>

#define MAXFD 65536
#define RB0 8192

typedef struct {
  int fd, used, streaming, sent, total, hidx;  // hidx: heap index or -1
  int runnable, blocked;                       // for unpaced mode
  u64 due;
  char *rb; int rlen, rcap;
  char *ob; int olen, opos, ocap;              // unsent remainder
  u64 id; int prompt_tokens, ids, usages;
} conn_t;

static conn_t conns[MAXFD];
static int ep;
static const char *model = "mock-model";
static u64 interval_ns = 0, ttft_ns = 0;
static int lockstep = 0, def_chunks = 256, die_after = 0;
static struct { u64 reqs, started, completed, aborted, chunks, nonstream, conns, other; int64_t active; } st;
static u64 next_id = 1, tick_due = 0;

// ---- min-heap of paced streams -------------------------------------------------
static conn_t *heap[MAXFD]; static int hn;
static void hswap(int a, int b) { conn_t *t = heap[a]; heap[a] = heap[b]; heap[b] = t; heap[a]->hidx = a; heap[b]->hidx = b; }
static void hup(int i) { while (i && heap[(i - 1) / 2]->due > heap[i]->due) { hswap(i, (i - 1) / 2); i = (i - 1) / 2; } }
static void hdown(int i) {
  for (;;) { int l = 2 * i + 1, m = i; if (l < hn && heap[l]->due < heap[m]->due) m = l; if (l + 1 < hn && heap[l + 1]->due < heap[m]->due) m = l + 1;
    if (m == i) return; hswap(i, m); i = m; }
}
static void hpush(conn_t *c) { c->hidx = hn; heap[hn++] = c; hup(c->hidx); }
static void hdel(conn_t *c) { int i = c->hidx; if (i < 0) return; c->hidx = -1; hn--; if (i != hn) { heap[i] = heap[hn]; heap[i]->hidx = i; hup(i); hdown(heap[i]->hidx); } }
// ---- list of unpaced, runnable streams -------------------------------------------
static conn_t *runq[MAXFD]; static int rn;
static void run_add(conn_t *c) { if (!c->runnable) { c->runnable = 1; runq[rn++] = c; } }

static void conn_close(conn_t *c) {
  if (!c->used) return;
  if (c->streaming) { st.aborted++; st.active--; c->streaming = 0; }
  hdel(c);
  c->used = 0;  // runq entries are skipped lazily (runnable stays set until popped)
  close(c->fd);
  free(c->rb); free(c->ob); c->rb = c->ob = NULL;
}
// returns 0 ok, -1 closed
static int out(conn_t *c, const char *p, int n) {
  if (c->olen == c->opos) {
    c->olen = c->opos = 0;
    ssize_t w = send(c->fd, p, n, MSG_NOSIGNAL);
    if (w == n) return 0;
    if (w < 0) { if (errno != EAGAIN) { conn_close(c); return -1; } w = 0; }
    p += w; n -= w;
  }
  if (c->olen + n > c->ocap) { c->ocap = (c->olen + n) * 2; c->ob = realloc(c->ob, c->ocap); }
  memcpy(c->ob + c->olen, p, n); c->olen += n; c->blocked = 1;
  return 0;
}

static const char HEX[] = "0123456789abcdef";
static char *put_u(char *d, unsigned v) { char t[12]; int n = 0; do t[n++] = '0' + v % 10; while (v /= 10); while (n) *d++ = t[--n]; return d; }
static char *put_s(char *d, const char *s, int n) { memcpy(d, s, n); return d + n; }
#define LIT(d, s) put_s(d, s, sizeof(s) - 1)
static char pre[256]; static int pre_n;  // ..."object":...,"created":...,"model":"..."

static char *put_usage(char *d, conn_t *c, int done) {
  d = LIT(d, "\"usage\":{\"prompt_tokens\":"); d = put_u(d, c->prompt_tokens);
  d = LIT(d, ",\"total_tokens\":"); d = put_u(d, c->prompt_tokens + done);
  d = LIT(d, ",\"completion_tokens\":"); return put_u(d, done);
}
// kind 0 role, 1 content, 2 usage-only; returns length of the whole HTTP chunk
static int build(conn_t *c, char *buf, int kind) {
  char *body = buf + 5, *d = body;  // 3 hex digits + CRLF
  d = LIT(d, "data: {\"id\":\"chatcmpl-8f3c2d1e4b5a6978");
  for (int i = 60; i >= 0; i -= 4) *d++ = HEX[(c->id >> i) & 15];
  d = put_s(d, pre, pre_n);
  if (kind == 0) { d = LIT(d, "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    if (c->usages) { *d++ = ','; d = put_usage(d, c, 0); d = LIT(d, ",\"completion_tokens_details\":null}"); }
    d = c->ids ? LIT(d, ",\"prompt_token_ids\":[1,1516,43,76,1418,2,1,3419,638,857]") : LIT(d, ",\"prompt_token_ids\":null");
    d = LIT(d, ",\"prompt_text\":null}\n\n"); }
  else if (kind == 1) {
    d = LIT(d, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" @");
    u64 t = now_ns();
    for (int i = 60; i >= 0; i -= 4) *d++ = HEX[(t >> i) & 15];
    d = LIT(d, "\"},\"logprobs\":null,\"finish_reason\":");
    if (c->sent + 1 >= c->total) d = LIT(d, "\"length\",\"stop_reason\":null,\"token_ids\":"); else d = LIT(d, "null,\"token_ids\":");
    if (c->ids) { *d++ = '['; d = put_u(d, 10000 + c->sent); d = LIT(d, "]}]"); } else d = LIT(d, "null}]");
    if (c->usages) { *d++ = ','; d = put_usage(d, c, c->sent + 1); d = LIT(d, ",\"completion_tokens_details\":null}"); }
    d = LIT(d, "}\n\n");
  } else { d = LIT(d, "\"choices\":[],"); d = put_usage(d, c, c->total); d = LIT(d, "},\"system_fingerprint\":\"vllm-0.32.0-85068dfe\"}\n\n"); }
  int n = d - body;
  buf[0] = HEX[(n >> 8) & 15]; buf[1] = HEX[(n >> 4) & 15]; buf[2] = HEX[n & 15]; buf[3] = '\r'; buf[4] = '\n';
  *d++ = '\r'; *d++ = '\n';
  return d - buf;
}
static int try_parse(conn_t *c);

// emit one content chunk; on the last one also usage + [DONE] (own writes). 1 = stream finished, -1 = closed
static int step(conn_t *c) {
  char buf[1024]; int n;
  if (c->sent == 0) { n = build(c, buf, 0); if (out(c, buf, n)) return -1; }
  n = build(c, buf, 1);
  if (out(c, buf, n)) return -1;
  c->sent++; st.chunks++;
  if (die_after && c->sent >= die_after) {
    struct linger lg = {1, 0}; setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &lg, sizeof lg);
    c->streaming = 0; st.active--; conn_close(c); return -1;
  }
  if (c->sent < c->total) return 0;
  n = build(c, buf, 2);
  if (out(c, buf, n)) return -1;
  static const char fin[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
  if (out(c, fin, sizeof fin - 1)) return -1;
  c->streaming = 0; st.completed++; st.active--;
  return 1;
}
static void finish_stream(conn_t *c) { hdel(c); if (c->rlen) try_parse(c); }

static void simple(conn_t *c, int code, const char *ct, const char *body, int n) {
  char *b = malloc(n + 512);
  int h = sprintf(b, "HTTP/1.1 %d %s\r\ndate: Fri, 20 Nov 2026 11:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: %s\r\n\r\n",
                  code, code == 200 ? "OK" : "Not Found", n, ct);
  memcpy(b + h, body, n);
  out(c, b, h + n);
  free(b);
}
static long qarg(const char *q, const char *qe, const char *k, long def) {
  size_t kl = strlen(k);
  for (const char *p = q; p + kl < qe; p++) if ((p[-1] == '?' || p[-1] == '&') && !strncmp(p, k, kl) && p[kl] == '=') return atol(p + kl + 1);
  return def;
}
static const char *jfind(const char *b, int n, const char *key) {  // points after "key":<ws>
  const char *p = memmem(b, n, key, strlen(key));
  if (!p) return NULL;
  p += strlen(key);
  while (p < b + n && (*p == ' ' || *p == ':')) p++;
  return p < b + n ? p : NULL;
}
static void handle(conn_t *c, const char *h, const char *he, const char *body, int bn) {
  st.reqs++;
  if (!strncmp(h, "POST /v1/chat/completions", 25) || !strncmp(h, "POST /v1/completions", 20)) {
    const char *s = jfind(body, bn, "\"stream\"");
    const char *mt = jfind(body, bn, "\"max_tokens\"");
    if (!mt) mt = jfind(body, bn, "\"max_completion_tokens\"");
    c->total = mt && isdigit(*mt) ? atoi(mt) : def_chunks;
    if (c->total < 1) c->total = 1;
    c->prompt_tokens = 10 + bn / 5;
    c->ids = memmem(body, bn, "\"return_token_ids\":true", 23) != NULL;
    // Usage in every chunk, also for proxies that do not ask for it; not beside token ids, which are counted instead.
    c->usages = !c->ids || memmem(body, bn, "\"continuous_usage_stats\":true", 29) != NULL;
    c->id = next_id++ * 0x9E3779B97F4A7C15ull;
    if (s && *s == 't') {
      static const char hd[] = "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 11:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
      st.started++; st.active++; c->streaming = 1; c->sent = 0;
      if (out(c, hd, sizeof hd - 1)) return;
      if (interval_ns) {
        u64 t = now_ns();
        c->due = lockstep ? 0 : t + ttft_ns;
        hpush(c);
        if (lockstep && hn == 1) tick_due = t;
      } else run_add(c);
    } else {
      st.nonstream++;
      char b[1024];
      int n = snprintf(b, sizeof b, "{\"id\":\"chatcmpl-8f3c2d1e4b5a6978%016llx\",\"object\":\"chat.completion\",\"created\":1795172665,\"model\":\"%s\",\"choices\":[{\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog near the river bank while the sun sets slowly behind the hills.\","
        "\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],"
        "\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":26,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"kv_transfer_params\":null}",
        (unsigned long long)c->id, model, c->prompt_tokens, c->prompt_tokens + 26);
      simple(c, 200, "application/json", b, n);
    }
    return;
  }
  st.other++;
  const char *path = memchr(h, ' ', he - h);
  if (!path) { conn_close(c); return; }
  path++;
  const char *pe = memchr(path, ' ', he - path);
  if (!pe) pe = he;
  char b[2048]; int n;
  #define IS(s) (!strncmp(path, s, sizeof(s) - 1))
  if (IS("/_ctl")) {
    interval_ns = qarg(path, pe, "interval_us", interval_ns / 1000) * 1000ull;
    ttft_ns = qarg(path, pe, "ttft_us", ttft_ns / 1000) * 1000ull;
    lockstep = qarg(path, pe, "lockstep", lockstep);
    def_chunks = qarg(path, pe, "chunks", def_chunks);
    die_after = qarg(path, pe, "die_after", die_after);
    if (qarg(path, pe, "reset", 0)) { int64_t a = st.active; memset(&st, 0, sizeof st); st.active = a; }
    n = sprintf(b, "{\"interval_us\":%llu,\"ttft_us\":%llu,\"lockstep\":%d,\"chunks\":%d,\"die_after\":%d}", (unsigned long long)(interval_ns / 1000), (unsigned long long)(ttft_ns / 1000), lockstep, def_chunks, die_after);
    simple(c, 200, "application/json", b, n);
  } else if (IS("/_stats")) {
    n = sprintf(b, "{\"active\":%lld,\"started\":%llu,\"completed\":%llu,\"aborted\":%llu,\"chunks\":%llu,\"nonstream\":%llu,\"conns\":%llu,\"other\":%llu}",
      (long long)st.active, (unsigned long long)st.started, (unsigned long long)st.completed, (unsigned long long)st.aborted, (unsigned long long)st.chunks, (unsigned long long)st.nonstream, (unsigned long long)st.conns, (unsigned long long)st.other);
    simple(c, 200, "application/json", b, n);
  } else if (IS("/v1/models")) {
    n = sprintf(b, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1795172665,\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":32768,\"permission\":[]}]}", model, model);
    simple(c, 200, "application/json", b, n);
  } else if (IS("/metrics")) {
    n = sprintf(b, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"%s\"} %lld.0\n"
      "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} 0.0\n"
      "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"%s\"} 0.0\n"
      "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{engine=\"0\",model_name=\"%s\"} 0.0\n"
      "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",engine=\"0\",kv_cache_size_tokens=\"64000000\",num_gpu_blocks=\"4000000\"} 1.0\n",
      model, (long long)st.active, model, model, model);
    simple(c, 200, "text/plain; version=0.0.4", b, n);
  } else if (IS("/health") || IS("/ping") || IS("/liveness") || IS("/readiness")) simple(c, 200, "text/plain", "", 0);
  else simple(c, 404, "application/json", "{\"detail\":\"Not Found\"}", 22);
}
// 1 = handled one or more, 0 = need more
static int try_parse(conn_t *c) {
  while (c->used && !c->streaming && c->rlen) {
    char *e = memmem(c->rb, c->rlen, "\r\n\r\n", 4);
    if (!e) return 0;
    int hn_ = e + 4 - c->rb, total, bn = 0;
    char *body = c->rb + hn_;
    const char *cl = find_hdr(c->rb, e + 2, "content-length:"), *te = find_hdr(c->rb, e + 2, "transfer-encoding:");
    if (find_hdr(c->rb, e + 2, "expect:") && c->rlen == hn_) out(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    char *dec = NULL;
    if (te && !strncasecmp(te, "chunked", 7)) {  // decode a chunked request body
      char *p = body, *lim = c->rb + c->rlen, *o = dec = malloc(c->rlen);
      for (;;) {
        char *nl = memchr(p, '\n', lim - p);
        if (!nl) { free(dec); return 0; }
        long k = strtol(p, NULL, 16);
        p = nl + 1;
        if (lim - p < k + 2) { free(dec); return 0; }
        if (!k) { p += 2; break; }
        memcpy(o, p, k); o += k; p += k + 2;
      }
      bn = o - dec; total = p - c->rb;
    } else { bn = cl ? atoi(cl) : 0; total = hn_ + bn; if (c->rlen < total) return 0; }
    char *save = c->rb;  // handle() may close and free
    c->rb = NULL; int rl = c->rlen, rc = c->rcap; c->rlen = c->rcap = 0;
    handle(c, save, e, dec ? dec : body, bn);
    free(dec);
    if (!c->used) { free(save); return 1; }
    memmove(save, save + total, rl - total);
    c->rb = save; c->rlen = rl - total; c->rcap = rc;
  }
  return 1;
}
static void on_read(conn_t *c) {
  for (;;) {
    if (c->rcap - c->rlen < 4096) { c->rcap = c->rcap ? c->rcap * 2 : RB0; c->rb = realloc(c->rb, c->rcap); }
    ssize_t n = recv(c->fd, c->rb + c->rlen, c->rcap - c->rlen, 0);
    if (n == 0) { conn_close(c); return; }
    if (n < 0) { if (errno != EAGAIN) conn_close(c); break; }
    c->rlen += n;
    int full = c->rlen == c->rcap;
    try_parse(c);
    if (!c->used) return;
    if (!full) break;  // short read: drained (ET is re-armed by new data)
  }
}
static void flush_out(conn_t *c) {
  c->blocked = 0;
  while (c->opos < c->olen) {
    ssize_t w = send(c->fd, c->ob + c->opos, c->olen - c->opos, MSG_NOSIGNAL);
    if (w < 0) { if (errno == EAGAIN) c->blocked = 1; else conn_close(c); return; }
    c->opos += w;
  }
  c->olen = c->opos = 0;
  if (c->streaming && !interval_ns) run_add(c);
}
int main(int ac, char **av) {
  int port = 9000, o;
  while ((o = getopt(ac, av, "p:n:i:T:Lm:")) != -1) switch (o) {
    case 'p': port = atoi(optarg); break; case 'n': def_chunks = atoi(optarg); break;
    case 'i': interval_ns = atol(optarg) * 1000ull; break; case 'T': ttft_ns = atol(optarg) * 1000ull; break;
    case 'L': lockstep = 1; break; case 'm': model = optarg; break; default: return 2; }
  signal(SIGPIPE, SIG_IGN); raise_nofile();
  pre_n = sprintf(pre, "\",\"object\":\"chat.completion.chunk\",\"created\":1795172665,\"model\":\"%s\",", model);
  int ls = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(ls, (void *)&a, sizeof a) || listen(ls, 8192)) die("bind");
  nonblock(ls);
  ep = epoll_create1(0);
  struct epoll_event ev = {EPOLLIN, {.fd = ls}}, evs[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, ls, &ev);
  fprintf(stderr, "mock_backend on 127.0.0.1:%d\n", port);
  for (;;) {
    struct timespec to, *tp = NULL;
    if (rn) { to = (struct timespec){0, 0}; tp = &to; }
    else if (hn) { u64 t = now_ns(), due = lockstep ? tick_due : heap[0]->due; u64 d = due > t ? due - t : 0; to = (struct timespec){d / 1000000000, d % 1000000000}; tp = &to; }
    int n = epoll_pwait2(ep, evs, 512, tp, NULL);
    for (int i = 0; i < n; i++) {
      int fd = evs[i].data.fd;
      if (fd == ls) {
        for (int k = 0; k < 256; k++) {
          int f = accept4(ls, NULL, NULL, SOCK_NONBLOCK);
          if (f < 0) break;
          nodelay(f); st.conns++;
          conn_t *c = &conns[f];
          int was = c->runnable;
          memset(c, 0, sizeof *c); c->runnable = was; c->fd = f; c->used = 1; c->hidx = -1;
          ev = (struct epoll_event){EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = f}};
          epoll_ctl(ep, EPOLL_CTL_ADD, f, &ev);
        }
        continue;
      }
      conn_t *c = &conns[fd];
      if (!c->used) continue;
      if (evs[i].events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) { conn_close(c); continue; }
      if (evs[i].events & EPOLLOUT && c->blocked) flush_out(c);
      if (c->used && evs[i].events & EPOLLIN) on_read(c);
    }
    if (rn) {  // unpaced: one chunk per runnable stream per round
      int m = rn, k = 0; rn = 0;
      static conn_t *cur[MAXFD]; memcpy(cur, runq, m * sizeof *cur); (void)k;
      for (int i = 0; i < m; i++) {
        conn_t *c = cur[i]; c->runnable = 0;
        if (!c->used || !c->streaming || c->blocked) continue;
        int r = step(c);
        if (r == 1) finish_stream(c);
        else if (r == 0 && !c->blocked) run_add(c);
      }
    }
    if (hn) {
      u64 t = now_ns();
      if (lockstep) {
        if (t >= tick_due) {
          tick_due += interval_ns; if (tick_due < t) tick_due = t + interval_ns;
          for (int i = hn - 1; i >= 0; i--) { if (i >= hn) continue; conn_t *c = heap[i]; if (step(c) == 1) finish_stream(c); }
        }
      } else for (int k = 0; k < 64 && hn && heap[0]->due <= t; k++) {
        conn_t *c = heap[0];
        c->due += interval_ns; if (!interval_ns) c->due = t;
        int r = step(c);
        if (r == 1) finish_stream(c); else if (r == 0) hdown(c->hidx);
      }
    }
  }
}
