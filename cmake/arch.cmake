# headway_arch(NAME PROCESSOR regex FLAGS flag...): one row of the kernel table.
#
# Compiles arch/NAME/*.c with FLAGS into an object library of its own when the target processor matches
# and the compiler takes every flag, and appends the row to the list: HEADWAY_ROW(NAME), or
# HEADWAY_ROW_ABSENT(NAME, "why").
include(CheckCCompilerFlag)
set_property(GLOBAL PROPERTY HEADWAY_ROW_TARGETS "")
set_property(GLOBAL PROPERTY HEADWAY_ROW_LINES "")
set_property(GLOBAL PROPERTY HEADWAY_ROW_NAMES "")

function(headway_arch name)
    cmake_parse_arguments(PARSE_ARGV 1 arch "" "PROCESSOR" "FLAGS")
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/arch/${name}/*.c)
    set(absent "")
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(${arch_PROCESSOR})$")
        set(absent "not built for ${CMAKE_SYSTEM_PROCESSOR}")
    elseif(NOT sources)
        set(absent "this build has no source for it")
    endif()
    foreach(flag IN LISTS arch_FLAGS)
        string(MAKE_C_IDENTIFIER "headway_takes${flag}" takes)
        if(NOT absent)
            check_c_compiler_flag(${flag} ${takes})
            if(NOT ${takes})
                set(absent "the compiler does not take ${flag}")
            endif()
        endif()
    endforeach()

    set_property(GLOBAL APPEND PROPERTY HEADWAY_ROW_NAMES ${name})
    set_property(GLOBAL PROPERTY HEADWAY_ROW_FLAGS_${name} "${arch_FLAGS}")
    if(absent)
        set_property(GLOBAL APPEND_STRING PROPERTY HEADWAY_ROW_LINES
            "HEADWAY_ROW_ABSENT(${name}, \"${absent}\")\n")
        message(STATUS "Row ${name}: absent, ${absent}")
        return()
    endif()
    set_property(GLOBAL APPEND_STRING PROPERTY HEADWAY_ROW_LINES "HEADWAY_ROW(${name})\n")
    set_property(GLOBAL APPEND PROPERTY HEADWAY_ROW_TARGETS headway_row_${name})
    add_library(headway_row_${name} OBJECT ${sources})
    target_link_libraries(headway_row_${name} PRIVATE headway_flags)
    # Kernels unroll what they want unrolled; -O3 has ideas of its own.
    target_compile_options(headway_row_${name} PRIVATE ${arch_FLAGS} $<$<CONFIG:Release>:-O2>)
    if(HEADWAY_SANITIZE)
        # The checks of all that is unrolled take gcc minutes at -O2.
        target_compile_options(headway_row_${name} PRIVATE -O1)
    endif()
    if(HEADWAY_FUZZ)
        # Clang takes many minutes to optimise the checks of all that is unrolled.
        target_compile_options(headway_row_${name} PRIVATE -O0)
    endif()
    # Link-time optimisation could carry this row's instructions into code that every CPU runs.
    set_target_properties(headway_row_${name} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
    message(STATUS "Row ${name}: built")
endfunction()

# Writes the list for src/cpu/kernels.c and hands the objects to the libraries.
function(headway_arch_list)
    get_property(lines GLOBAL PROPERTY HEADWAY_ROW_LINES)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/headway_rows.h @ONLY CONTENT
"/* Written by cmake/arch.cmake from arch/CMakeLists.txt. Best first. */
@lines@")
    get_property(targets GLOBAL PROPERTY HEADWAY_ROW_TARGETS)
    set(HEADWAY_ROW_TARGETS ${targets} PARENT_SCOPE)
endfunction()
