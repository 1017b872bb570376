#include "user.c"
