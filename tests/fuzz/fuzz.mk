# SPDX-License-Identifier: MIT
# Fuzz targets: their replays among the tests, and libFuzzer in a build tree of its own. Included by
# the Makefile.

T       ?= gguf
SECONDS ?= 60
FUZZ_CC ?= clang

# tests/fuzz/FOLDER/fuzz_NAME.c becomes $(BUILD)/tests/fuzz/replay_NAME and build/fuzz/fuzz_NAME;
# targets may use library and tools
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c tests/fuzz/*/fuzz_*.c)
FUZZ_AUX := tests/fuzz/fixture.c tests/text/schema_check.c
FUZZERS  := $(patsubst fuzz_%.c,%,$(notdir $(FUZZ_SRC)))
REPLAYS  := $(addprefix $(BUILD)/tests/fuzz/replay_,$(FUZZERS))
$(foreach f,$(FUZZ_SRC),$(eval $(BUILD)/tests/fuzz/replay_$(patsubst fuzz_%.c,%,$(notdir $f)): \
  $(f:%.c=$(BUILD)/%.o)))
$(REPLAYS): $(BUILD)/tests/fuzz/replay.o $(FUZZ_AUX:%.c=$(BUILD)/%.o) $(BUILD)/libtools.a

$(BUILD)/libtools.a: $(filter-out %/main.o,$(TOOL_OBJ))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# Library and tools compiled by clang, instrumented. As in the sanitizers' build (LEAN in the
# Makefile), inner loops are without the checks of every access that the address sanitizer makes
# too: the code of one macro for all types is two thirds of what there is to compile.
FUZZ_LEAN = $(if $(filter kernels/% src/quant/%,$(1)), \
            -fno-sanitize=null$(comma)object-size$(comma)pointer-overflow)
FUZZ_ALL = -std=gnu11 -gline-tables-only -O1 -ffp-contract=off -fsanitize=address,undefined \
           -fno-sanitize-recover=all -Wno-unknown-pragmas
FUZZ_CPP = $(CPP_ALL) -UHAVE_CUDA -DHAVE_CUDA=0
FUZZ_LIBS = $(filter-out $(CUDA_LIBS),$(LIBS))
$(foreach f,$(FUZZ_SRC),$(eval build/fuzz/$(basename $(notdir $f)): $(f:%.c=build/fuzz/%.o)))
$(FUZZERS:%=build/fuzz/fuzz_%): $(FUZZ_AUX:%.c=build/fuzz/%.o) build/fuzz/libfuzzed.a
	$(call say,LD,$@)
	$(Q)$(FUZZ_CC) $(FUZZ_ALL) -fsanitize=fuzzer $(FUZZ_CPP) -o $@ $(filter %.o,$^) \
	  $(filter %.a,$^) $(FUZZ_LIBS)

FUZZ_OBJ = $(filter-out %/main.o,$(patsubst %.c,build/fuzz/%.o,$(LIB_SRC) $(TOOL_SRC)))
build/fuzz/libfuzzed.a: $(FUZZ_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# Flags of its own: those of $(BUILD) change with CUDA and others, and would compile all of it again.
build/fuzz/.flags: new = $(FUZZ_CC) $(FUZZ_ALL) $(FUZZ_CPP)
build/fuzz/%.o: %.c build/fuzz/.flags
	$(call say,CLANG,$<)
	$(Q)mkdir -p $(@D) && $(FUZZ_CC) $(FUZZ_ALL) -fsanitize=fuzzer-no-link $(call isa,$<) \
	  $(call FUZZ_LEAN,$<) $(FUZZ_CPP) -MMD -MP -c $< -o $@

fuzz: build/fuzz/fuzz_$(T) ## fuzz one parser: T=NAME of tests/fuzz (gguf), SECONDS=60
	@tests/fuzz/fuzz.py run $(SECONDS) $(T)

fuzz-all: $(FUZZERS:%=build/fuzz/fuzz_%) ## fuzz every parser for SECONDS=60, as many as cores
	@tests/fuzz/fuzz.py run $(SECONDS) $(FUZZERS)

fuzz-merge: $(FUZZERS:%=build/fuzz/fuzz_%) ## minimise what was found into tests/fuzz/corpus
	@tests/fuzz/fuzz.py merge $(FUZZERS)

.PHONY: fuzz fuzz-all fuzz-merge
