/* The report's section of learning rates from gradient statistics. */
#ifndef LGI_REPORT_REPORT_RATES_H
#define LGI_REPORT_REPORT_RATES_H

#include "leapgrad/report.h"
#include "report/text_buffer.h"

/* Adds nothing if the metrics have no gains ("gain/NAME"). */
void lgi_report_add_rates(lgi_text *out, const lg_metrics *metrics);

#endif
