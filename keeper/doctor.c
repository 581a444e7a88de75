/* doctor.c - placeholder while the doctor is written. */
#include "keeper.h"
int doctor_run(const struct keeper_options *options)
{
    (void)options;
    return 0;
}
