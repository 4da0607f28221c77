# SPDX-License-Identifier: MIT
# COVERAGE=1: a build that counts which lines and branches run (tests/coverage.py). Included by the
# Makefile.

# the folders that are reported: as written, so that each line counts for itself
COVERED = $(if $(COVERAGE),$(if $(filter $(addsuffix /%,src/format src/text src/serve src/engine \
          cache stream),$(1)),-O0 -U_FORTIFY_SOURCE --coverage))
# what a confined server may write besides
COVERAGE_DEF = $(if $(COVERAGE),-DCOVERAGE_FOLDER='"$(abspath $(BUILD))"')

# not those of kernels, nor a slow one of the tools; of the scripts those that reach most for their
# time. Tests take fewer rounds in this build (tests/support/slow_build.h)
COVERAGE_E2E   := cli damage draft drafts expert_walk fault_requests fault_serve figures fill \
                  lookahead overwrite profile ranks repl replicas sandbox serve serve_framing \
                  serve_prompts serve_shares session stages trace verify
COVERAGE_TESTS  = $(notdir $(basename $(filter-out tests/card/% tests/kernels/% tests/quant/% \
                    tests/tools/test_measure_host.c,$(TEST_SRC)))) \
                  $(FUZZERS:%=replay_%) $(COVERAGE_E2E:%=e2e_%)

coverage: ## run the tests of the library in a build that counts, and print what they reach
	@$(MAKE) COVERAGE=1 CUDA=0 tests
	@find build/coverage -name '*.gcda' -delete
	@tests/run_tests.sh build/coverage $(COVERAGE_TESTS)
	@tests/coverage.py build/coverage

.PHONY: coverage
