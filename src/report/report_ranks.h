/* The report's tables that hold what was measured against the plan: by rank, and by op. */
#ifndef LGI_REPORT_REPORT_RANKS_H
#define LGI_REPORT_REPORT_RANKS_H

#include "report/picture.h"

/* What each rank does in a step, by panel. Adds nothing for one rank. */
LG_NODISCARD lg_status lgi_report_add_ranks(lgi_text *out, const lgi_picture *picture);

/* The ops whose times differ most between two panels. Adds nothing with another number of panels. */
LG_NODISCARD lg_status lgi_report_add_differences(lgi_text *out, const lgi_picture *picture);

#endif
