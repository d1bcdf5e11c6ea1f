/* Records from the inside: the JSON object, for the modules that list or join members. */
#ifndef LGI_REPORT_RECORD_H
#define LGI_REPORT_RECORD_H

#include <jansson.h>

#include "leapgrad/report.h"

struct lg_record {
    json_t *json; /* an object */
};

#endif
