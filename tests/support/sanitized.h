/* SPDX-License-Identifier: MIT */
/* Sanitizers slow arithmetic down by ten and more: what has been shown with all rounds in a plain
 * build has fewer of them there. */
#ifndef GLM_TESTS_SANITIZED_H
#define GLM_TESTS_SANITIZED_H

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define IF_SANITIZED(few, all) (few)
#else
#define IF_SANITIZED(few, all) (all)
#endif

#endif
