/*
 * The run directory. Only one process at a time works in it (a lock on .lock); what makes a directory a run is its
 * run.json, the first file that is written to it.
 */
#ifndef LGI_TRAIN_RUN_DIR_H
#define LGI_TRAIN_RUN_DIR_H

#include "leapgrad/recipe.h"

/* Names in the run directory. */
#define LGI_RUN_JSON "run.json"
#define LGI_RUN_RECIPE "recipe.yaml"
#define LGI_RUN_PLAN "plan.json"
#define LGI_RUN_COSTS "costs.json"
#define LGI_RUN_MACHINE "machine.json"
#define LGI_RUN_METRICS "metrics.jsonl"
#define LGI_RUN_TIMELINE "timeline.json"
#define LGI_RUN_TIMELINE_SVG "timeline.svg"
#define LGI_RUN_TIMELINE_CSV "timeline.csv"
#define LGI_RUN_TRACE "trace.json"
#define LGI_RUN_REPORT "report.html"
#define LGI_RUN_SAMPLE "sample.txt"
#define LGI_RUN_CHECKPOINTS "checkpoints"

typedef struct lgi_run_dir {
    char *path;
    int lock_fd;    /* -1: not claimed */
    bool was_moved; /* a run that was there is now in PATH.previous */
} lgi_run_dir;

/*
 * Finds out where a recipe's run goes, and says early what would not work: a directory with other things in it, a place
 * where nothing can be written; with `resume`, no run. Changes nothing.
 */
LG_NODISCARD lg_status lgi_run_dir_init(lgi_run_dir *dir, const lg_recipe *recipe, bool resume);

/* Only finds out where it goes: for ranks that leave it to another one. */
LG_NODISCARD lg_status lgi_run_dir_find(lgi_run_dir *dir, const lg_recipe *recipe);

/* Locks the directory; without `resume` it is empty afterwards. */
LG_NODISCARD lg_status lgi_run_dir_claim(lgi_run_dir *dir, bool resume);

/* Removes the files that a run begins with: it did not get further. */
void lgi_run_dir_clear(const lgi_run_dir *dir);

/* Gives it up; removes it if nothing was written to it. Fine at any time after init. */
void lgi_run_dir_deinit(lgi_run_dir *dir);

/* The path of a file in it. Ownership: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_run_dir_file(char **out, const lgi_run_dir *dir, const char *name);

/* Whether it has such a file. */
bool lgi_run_dir_has(const lgi_run_dir *dir, const char *name);

#endif
