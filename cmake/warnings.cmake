# headway_flags: how everything of ours is compiled. headway_sanitize: the sanitizers alone.

add_library(headway_sanitize INTERFACE)
if(HEADWAY_SANITIZE)
    target_compile_options(headway_sanitize INTERFACE
        -fsanitize=${HEADWAY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(headway_sanitize INTERFACE -fsanitize=${HEADWAY_SANITIZE})
endif()
if(HEADWAY_FUZZ)
    target_compile_options(headway_sanitize INTERFACE -fsanitize=fuzzer-no-link)
endif()

add_library(headway_flags INTERFACE)
# Contraction would fuse what the source keeps apart: other bits on machines with fma.
target_compile_options(headway_flags INTERFACE -ffp-contract=off
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wundef -Wvla
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>)
target_include_directories(headway_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(headway_flags INTERFACE headway_sanitize)
