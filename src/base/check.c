#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "postern: bug: CHECK(%s) failed at %s:%d\n", condition, file, line);
    abort();
}
