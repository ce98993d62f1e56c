/* A CUPTI whose answer to a profiler is the number in FAKE_CUPTI; 35 is CUPTI_ERROR_INSUFFICIENT_PRIVILEGES. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

int cuptiGetVersion(uint32_t *version) { *version = 26; return 0; }
int cuptiSubscribe(void **subscriber, void *callback, void *data) {
  const char *answer = getenv("FAKE_CUPTI");
  (void)callback; (void)data;
  *subscriber = (void *)1;
  if (answer && atoi(answer) == -1) sleep(600);
  if (answer && atoi(answer) == -2) abort();
  return answer ? atoi(answer) : 0;
}
int cuptiUnsubscribe(void *subscriber) { return subscriber == (void *)1 ? 0 : 1; }
int cuptiGetResultString(int result, const char **name) {
  *name = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
  return 0;
}
