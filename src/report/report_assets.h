/* The style sheet and the script of report.html. */
#ifndef LGI_REPORT_REPORT_ASSETS_H
#define LGI_REPORT_REPORT_ASSETS_H

/* Lines; NULL after the last. */
extern const char *const lgi_report_css[];
extern const char *const lgi_report_js[];

#endif
