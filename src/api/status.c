#include "headway/headway.h"

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *headway_version(void)
{
    return VERSION_TEXT(HEADWAY_VERSION_MAJOR, HEADWAY_VERSION_MINOR, HEADWAY_VERSION_PATCH);
}

const char *headway_status_text(headway_status status)
{
    switch (status) {
    case HEADWAY_OK:
        return "ok";
    case HEADWAY_ERROR_ARGUMENT:
        return "argument";
    case HEADWAY_ERROR_OVERLAP:
        return "overlap";
    case HEADWAY_ERROR_WORKSPACE:
        return "workspace";
    case HEADWAY_ERROR_MEMORY:
        return "memory";
    case HEADWAY_ERROR_NOT_BUILT:
        return "not built";
    case HEADWAY_ERROR_CANNOT_RUN:
        return "cannot run";
    case HEADWAY_ERROR_UNSUPPORTED:
        return "unsupported";
    }
    return "unknown status";
}
