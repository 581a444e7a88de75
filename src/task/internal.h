/* internal.h - private to the task room. */
#ifndef TASK_INTERNAL_H
#define TASK_INTERNAL_H

#include "task/task.h"

#define TASK_BYTES_MAX (64u << 20)      /* a file of tasks */
#define TASK_INSTRUCTION_MAX (1u << 20) /* instruction.md */
#define TASK_COMMANDS_MAX 1000
#define TASK_OUTPUT_KEPT (16u << 10) /* tail of each command's output */
#define TASK_LOG_MAX (1u << 20)      /* verifier.log */
#define TASK_REWARD_MAX (64u << 10)  /* reward.txt, reward.json */

/* An empty task with one reference; fields are filled from its arena. */
struct task *task_new(void);

/* [[tools]] and turns: tools.c */
struct toml_node;
int task_read_tools(struct task *task, struct toml_node *root, struct err *err);

#endif
