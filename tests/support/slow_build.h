/* SPDX-License-Identifier: MIT */
/* Sanitizers make arithmetic ten times slower and more, counts of coverage three times. Tests that
 * take all rounds in a plain build take fewer in these. */
#ifndef GLM_TESTS_SLOW_BUILD_H
#define GLM_TESTS_SLOW_BUILD_H

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(COVERAGE_FOLDER)
#define IF_SLOW_BUILD(few, all) (few)
#else
#define IF_SLOW_BUILD(few, all) (all)
#endif

/* For rounds that reach rare branches only by their number: a build that counts coverage takes all
 * of them, too. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define IF_SANITIZER(few, all) (few)
#else
#define IF_SANITIZER(few, all) (all)
#endif

#endif
