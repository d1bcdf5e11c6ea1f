/* Running the ops of gradient statistics and rates; see src/graph/build_stat.c for how they hang together. */
#ifndef LGI_EXEC_PROGRAM_RATE_H
#define LGI_EXEC_PROGRAM_RATE_H

#include "exec/program.h"
#include "leapgrad/rate.h"

/* S of the step: its samples over the base batch. */
double lgi_step_scale(const lgi_program *program, const lgi_step_input *input);

/* Adds a micro-batch's gradients to the sum and its squares to the statistics. */
void lgi_run_micro_stat(const lgi_program *program, const lgi_step_input *input,
                        const lg_op_info *op, void *const *pointers, int width);

/* Makes the rates of one layer, or of all; moves their states on, unless a gradient is not finite. */
void lgi_run_rate(const lgi_program *program, const lgi_step_input *input, const lg_op_info *op,
                  void *const *pointers);

/* The rate of the parameter that operand `param_operand` of an UPDATE is; NULL if `rates` is. */
const lg_rate *lgi_rate_of(const lgi_program *program, const lg_op_info *op, int param_operand,
                           const lg_rate *rates);

#endif
