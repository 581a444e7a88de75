/* test_sandbox_conformance_local.c - the suite on the local backend; large transfers, once. */
#include "sandbox_conformance.h"

static const struct target target = {
    .name = "local", .backend = "local", .local = true, .prepare = prepare_local};

CASE(a_file_of_1_gb_makes_the_round_trip, 300)
{
    big_file(stage, 1 << 30);
}

CASE(a_tree_of_10000_files_makes_the_round_trip, 300)
{
    round_trip_of_tree(stage, 10000);
}

static size_t resident_bytes(void)
{
    OWN(buf) struct buf text = {0};
    if (file_read("/proc/self/statm", 4096, &text, NULL) < 0)
        return 0;
    unsigned long pages = 0;
    sscanf(buf_text(&text), "%*u %lu", &pages);
    return pages * 4096;
}

CASE(ten_gb_of_output_harm_neither_memory_nor_neighbours, 600)
{
    struct watcher loud = {0};
    EXPECT_INT(INSIDE("exit", "0").exit.code, 0);
    size_t before = resident_bytes(), most = 0;
    int rounds = 0;
    START(&loud, .shell = "exec head -c 10G /dev/zero");
    while (!loud.exited) {
        struct result result = INSIDE("exit", "3");
        EXPECT_INT(result.exit.code, 3);
        rounds++;
        size_t now = resident_bytes();
        most = now > most ? now : most;
    }
    EXPECT_INT(loud.bytes, 10737418240);
    EXPECT_INT(loud.exit.code, 0);
    EXPECT(rounds > 10);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
    EXPECT(most < before + (16u << 20));
#endif
    fprintf(stderr, "  10 GB passed beside %d commands; memory grew by %zu KB at most\n", rounds,
            (most - before) / 1024);
    sandbox_job_close(loud.job);
}
