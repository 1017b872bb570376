#ifndef HEADWAY_CHECK_CPU_H
#define HEADWAY_CHECK_CPU_H

/* What the system's files say: the cgroup's quota in an engine's threads, huge pages under large
 * blocks. */
void check_cpu_system(void);

#endif
