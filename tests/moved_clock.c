/* Adds CLOCK_OFFSET seconds to the clock of the process that loads this. Waits are by the monotonic
   clock, which it leaves alone. libfaketime moves their deadlines: time.sleep() raises EINVAL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static __typeof__(&clock_gettime) real;
static time_t offset;

static void begin(void) {
  const char *seconds = getenv("CLOCK_OFFSET");
  offset = seconds ? atol(seconds) : 0;
  real = (__typeof__(real))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) begin();
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += offset;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec read;
  (void)zone;
  int failed = clock_gettime(CLOCK_REALTIME, &read);
  now->tv_sec = read.tv_sec;
  now->tv_usec = read.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *now) {
  struct timespec read;
  clock_gettime(CLOCK_REALTIME, &read);
  if (now) *now = read.tv_sec;
  return read.tv_sec;
}
