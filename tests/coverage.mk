# SPDX-License-Identifier: MIT
# COVERAGE=1: a build that counts which lines and branches run (tests/coverage.py). Included by the
# Makefile.

# the folders that are reported: as written, so that each line counts for itself
COVERED = $(if $(COVERAGE),$(if $(filter $(addsuffix /%,src/format src/text src/serve src/engine \
          cache stream),$(1)),-O0 -U_FORTIFY_SOURCE --coverage))
# what a confined server may write besides
COVERAGE_DEF = $(if $(COVERAGE),-DCOVERAGE_FOLDER='"$(abspath $(BUILD))"')

# Not the tests of kernels, nor those that reach next to nothing that the others do not for their
# time (16 lines and 34 branches of 45,000 by all of them, a third of the time). Tests take fewer
# rounds in this build (tests/support/slow_build.h)
COVERAGE_E2E   := damage expert_walk fault_requests figures overwrite profile ranks replicas sandbox \
                  serve serve_framing serve_shares trace verify
COVERAGE_TESTS  = $(notdir $(basename $(filter-out tests/card/% tests/kernels/% tests/quant/% \
                    $(addprefix tests/%/test_,measure_host.c pipeline.c prompt_residency.c \
                    serve_drafts.c serve_prompts.c serve_scheduler.c session.c),$(TEST_SRC)))) \
                  $(FUZZERS:%=replay_%) $(COVERAGE_E2E:%=e2e_%)

coverage: ## run the tests of the library in a build that counts, and print what they reach
	@$(MAKE) COVERAGE=1 CUDA=0 tests
	@find build/coverage -name '*.gcda' -delete
	@tests/run_tests.sh build/coverage $(COVERAGE_TESTS)
	@tests/coverage.py build/coverage

.PHONY: coverage
