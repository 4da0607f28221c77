# SPDX-License-Identifier: MIT
# glmstream: one build tree per mode under build/. `make help` lists targets, `make config` says
# what was found here.

V          ?= 0
SAN        ?=
COVERAGE   ?=
PREFIX     ?= /usr/local
POCKET_SRC ?= ../shared/pocket2
# the best mix under 30 MB by KL to the bf16 model: tools/pocket/README.md
POCKET_TYPES ?= $(subst $(space),$(comma),$(strip blk.7.*_exps*=IQ2_XXS \
  blk.[3456].*down_exps*=Q3_K blk.[456].*_exps*=Q3_K *_exps*=Q2_K token_embd*=Q6_K output.*=Q4_K \
  *attn_k_b*=Q4_0 blk.7.*=Q4_K *attn_o*=Q4_K *attn_q_b*=Q4_K *=Q5_K))

comma := ,
space := $(subst ,, )
Q     := $(if $(filter 1,$(V)),,@)
say    = $(if $(filter 1,$(V)),@:,@printf '  %-5s %s\n' $(1) $(2))
MODE  := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),$(if $(COVERAGE),coverage,release))
GOALS := $(or $(MAKECMDGOALS),all)
# a package has all parts, and a build tree of its own
PACKS := $(filter deb tarball,$(GOALS))
BUILD := build/$(if $(PACKS),package,$(MODE))

# as many jobs as there are cores; -j says otherwise
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# `make install` installs what was built: it takes the choices that the last build left here, where
# none are given. In a clean tree it builds for all cards.
CHOICES := $(BUILD)/.choices
ifneq ($(filter install,$(GOALS)),)
-include $(CHOICES)
endif
CUDA   ?= auto
PARTS  := URING LZ4 EDIT HTTP PAGE MPI
$(if $(PACKS),$(eval WITH_MPI ?= 0)) # a package runs where there is no Open MPI, or another one
$(foreach f,$(if $(PACKS),$(PARTS)),$(eval WITH_$f ?= 1))
# Under a sanitizer half of the compile time: reports need lines, not types and variables.
DEBUG_INFO ?= $(if $(SAN),-g1,-g)
CFLAGS     ?= $(if $(SAN),-O1,-O2) $(DEBUG_INFO)
ifeq ($(origin CC),default)
CC := $(or $(CC_BUILT),gcc)
endif

# `make run` and `make test` install what is missing, before anything is looked for
ifneq ($(filter run test deps deb tarball,$(GOALS)),)
INSTALL_DEPS = tools/scripts/install_deps.sh $(filter test,$(GOALS))
ifneq ($(if $(DEPS),0,$(shell $(INSTALL_DEPS) >&2; echo $$?)),0)
$(error required packages are missing)
endif
endif

# ---- what this machine has -----------------------------------------------------------------------
ifneq ($(filter-out help clean deps deps-bundle format format-check uninstall,$(GOALS)),)
FOUND := $(shell tools/scripts/probe.sh '$(CC)' '$(DEPS)' XXH=1 PCRE2=1 JSON=1 \
         $(foreach f,$(PARTS),$f=$(WITH_$f)))
MISSING := $(patsubst %=missing,%,$(filter %=missing,$(FOUND)))
ifneq ($(MISSING),)
$(error not found: $(MISSING); run tools/scripts/install_deps.sh or give DEPS=folder)
endif
# headers only: the library is loaded at run time, when mpirun started the program
MPI_FLAGS := $(if $(filter MPI,$(FOUND)),$(shell pkg-config --cflags-only-I ompi-c))
X86   := $(filter x86_64% amd64%,$(shell $(CC) -dumpmachine))
include kernels/cuda/cuda.mk
endif
has     = $(if $(filter $(1),$(FOUND)),$(2),$(3))
DEFS    = -D_GNU_SOURCE $(foreach f,$(PARTS) CUDA,-DHAVE_$f=$(call has,$f,1,0))
# one line each, printed when the configuration is new or has changed
NOTES   = 'CUDA: $(or $(NO_CUDA),$(NVCC) for $(CUDA_ARCH))' \
          $(call has,URING,,'liburing: none; files are read by threads') \
          $(call has,LZ4,,'liblz4: none; sessions and traces cannot be compressed') \
          $(call has,EDIT,,'libedit: none; no line editing in the chat') \
          $(call has,HTTP,,'libmicrohttpd: none; no serve command') \
          $(call has,PAGE,,'marked$(comma) DOMPurify$(comma) KaTeX or highlight.js: none; the \
          page of serve shows answers as plain text') \
          $(call has,MPI,,'Open MPI: none; one process$(comma) one host')

# ---- flags ---------------------------------------------------------------------------------------
# The same numbers everywhere: no -ffast-math, and products and sums are never fused behind the
# source's back. `omp simd` needs no library; threads come from kernels/cpu/cpu_pool.h. libgomp is
# linked for `omp parallel` in OMP_SRC alone, and not under the thread sanitizer, which cannot see
# its synchronisation and would report every loop.
OMP_SRC  := tools/bench/cmd_bench.c tools/machine/bench_copy.c
OPENMP   := $(if $(filter thread,$(SAN)),,-fopenmp)
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wno-psabi -Wno-format-truncation
WERR     := $(if $(filter 1,$(WERROR)),-Werror)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
# Inner loops are optimised as in other builds, and without the checks of every access that the
# address sanitizer makes too: a quarter of the time of a model's tests. Under the thread sanitizer
# the loops over one row are not watched at all, a ninth of a server test's time: what they read and
# write is handed over by cpu_pool, which is watched.
ROW_LOOPS = kernels/cpu/cpu_dot_% kernels/cpu/limbs/% src/quant/%
LEAN      = $(if $(SAN),$(if $(filter kernels/% src/quant/%,$(1)),-O2)) \
            $(if $(findstring undefined,$(SAN)),$(if $(filter kernels/% src/quant/%,$(1)), \
            -fno-sanitize=null$(comma)object-size$(comma)pointer-overflow)) \
            $(if $(findstring thread,$(SAN)),$(if $(filter $(ROW_LOOPS),$(1)), \
            -fno-sanitize=thread))
# hundreds of inlined functions each: where their variables are would take half of the compile time
INLINED   = $(if $(filter kernels/cpu/cpu_dot_%,$(1)),-g1)
include tools/scripts/harden.mk
C_ALL     = -std=gnu11 $(CFLAGS) $(HARDEN) -fno-math-errno -ffp-contract=off \
            -fopenmp-simd $(SANFLAGS) $(WARN) $(WERR) \
            $(if $(PACKS),-ffile-prefix-map=$(CURDIR)=.)
# sanitizer builds fill cache slots with poison before they are read into: a test that meets it has
# read too early
CPP_ALL   = -I. -I$(BUILD)/page $(DEFS) $(if $(SAN),-DLOADER_POISON) \
            $(if $(DEPS),-isystem $(DEPS)/include) $(call has,MPI,$(MPI_FLAGS)) \
            $(COVERAGE_DEF) $(CPPFLAGS)
# kernels/cpu/NAME_avx2.c, NAME_avx512.c, NAME_vnni.c (what Ice Lake and Zen 4 brought) and
# NAME_amx.c (Sapphire Rapids) get their instruction sets; on other machines such a file compiles to
# nothing
AVX512    = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
isa       = $(if $(X86),$(if $(filter %_avx2.c,$(1)),-mavx2 -mfma -mf16c) \
            $(if $(filter %_avx512.c,$(1)),$(AVX512)) \
            $(if $(filter %_vnni.c %_amx.c,$(1)),$(AVX512) -mavx512vnni -mavx512vbmi -mgfni) \
            $(if $(filter %_amx.c,$(1)),-mamx-tile -mamx-int8))
DEPS_LIBS = $(if $(DEPS),-L$(DEPS)/lib \
            -Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)$(abspath $(DEPS))/lib)
LIBS      = -Wl,--as-needed $(LDHARDEN) $(DEPS_LIBS) $(LDFLAGS) -lpcre2-8 -ljansson \
            $(call has,LZ4,-llz4) $(call has,URING,-luring) $(call has,EDIT,-ledit) \
            $(call has,HTTP,-lmicrohttpd) $(CUDA_LIBS) $(if $(COVERAGE),--coverage) -lpthread -lm

# ---- files ---------------------------------------------------------------------------------------
LIB_SRC  := $(sort $(shell find src cache stream kernels -name '*.c'))
LIB_OBJ   = $(LIB_SRC:%.c=$(BUILD)/%.o) $(call has,CUDA,$(CU_OBJ))
LIB      := $(BUILD)/libglmstream.a
TOOL_SRC := $(sort $(shell find tools -name '*.c'))
TOOL_OBJ := $(TOOL_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(wildcard tests/*/test_*.c)
TEST_AUX := $(filter-out $(TEST_SRC) tests/fuzz/%,$(wildcard tests/*/*.c))
TESTS    := $(addprefix $(BUILD)/tests/,$(notdir $(TEST_SRC:.c=)))
include tests/fuzz/fuzz.mk tests/coverage.mk
C_FILES   = $(sort $(shell find src cache stream kernels tools tests \
            -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))

all: $(LIB) $(BUILD)/glmstream ## build the program (the default)
	@printf '%s\n' $(CHOSEN) >$(CHOICES)

CHOSEN = 'CC_BUILT := $(CC)' 'CUDA ?= $(call has,CUDA,1,0)' \
         $(call has,CUDA,'CUDA_ARCH ?= $(CUDA_ARCH)' 'NVCC ?= $(NVCC)') \
         $(foreach f,$(PARTS),'WITH_$f ?= $(call has,$f,1,0)') \
         $(foreach v,DEPS WERROR CFLAGS CPPFLAGS LDFLAGS NVCCFLAGS,'$v ?= $($v)')

$(LIB): $(LIB_OBJ) $(BUILD)/.objects
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(LIB_OBJ)

$(BUILD)/glmstream: $(TOOL_OBJ)
# tests/FOLDER/test_NAME.c becomes $(BUILD)/tests/test_NAME; each links all support files
$(foreach t,$(TEST_SRC),$(eval $(BUILD)/tests/$(notdir $(t:.c=)): $(t:%.c=$(BUILD)/%.o)))
$(TESTS): $(TEST_AUX:%.c=$(BUILD)/%.o)
$(addprefix $(BUILD)/tests/,test_replayed_routing test_stages): \
  $(BUILD)/tools/bench/replayed_routing.o
$(addprefix $(BUILD)/tests/,test_cluster test_convert_target test_convert_units test_host_experts \
  test_common_opts test_imatrix test_measure_host test_plan): $(BUILD)/libtools.a
$(TESTS): private LIBS += -lcmocka $(addprefix -Wl$(comma)--wrap=,$(WRAP_$(@F)))
WRAP_test_session_file  = LZ4F_createDecompressionContext LZ4F_decompress
WRAP_test_micro_batches = mem_try_new
WRAP_test_ranks         = backend_library_version
$(BUILD)/glmstream $(TESTS) $(REPLAYS): $(LIB) $(BUILD)/.libs
	$(call say,LD,$@)
	$(Q)$(CC) $(C_ALL) $(LOCAL) -o $@ $(filter %.o %/libtools.a,$^) $(LIB) $(LIBS)

$(BUILD)/%.o: %.c $(BUILD)/.flags
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(C_ALL) $(call isa,$<) $(call LEAN,$<) $(call INLINED,$<) \
	  $(call COVERED,$<) $(CPP_ALL) $(LOCAL) -MMD -MP -c $< -o $@

# the page's files are part of its object file
$(BUILD)/page/files.inc: tools/scripts/build_page.sh $(wildcard src/serve/page/* \
  src/serve/page/*/*) $(BUILD)/.page
	$(call say,PAGE,$(@D))
	$(Q)tools/scripts/build_page.sh $(@D) $(call has,PAGE,'$(DEPS)',/nowhere)
$(BUILD)/src/serve/page.o build/fuzz/src/serve/page.o: $(BUILD)/page/files.inc \
  src/serve/page/page.html

$(OMP_SRC:%.c=$(BUILD)/%.o) $(BUILD)/glmstream: private LOCAL = $(OPENMP)

# stamps, rewritten only when what they hold has changed
$(BUILD)/.flags: new = $(CC) $(C_ALL) $(CPP_ALL) $(call has,CUDA,$(NVCC) $(NV_ALL))
$(BUILD)/.objects: new = $(LIB_OBJ)
$(BUILD)/.libs: new = $(LDFLAGS) $(DEPS_LIBS) $(CUDA_LIBS)
$(BUILD)/.page: new = $(call has,PAGE,$(or $(DEPS),packages),none)
$(addprefix $(BUILD)/.,flags objects libs page) build/fuzz/.flags: FORCE
	@mkdir -p $(@D); echo '$(new)' | cmp -s - $@ || { echo '$(new)' > $@; \
	  $(if $(filter %.flags,$@),printf '  %s\n' $(NOTES);) }

run: all ## chat with the pocket model; ARGS='-p "Define river."' passes options; installs packages
	@$(BUILD)/glmstream $(ARGS)

test: tests ## build and run all tests (installs missing packages)
	@tests/run_tests.sh $(BUILD)

tests: $(if $(SAN)$(COVERAGE)$(DEPS),,$(BUILD)/portable/glmstream)
tests: all $(TESTS) $(REPLAYS) ## build the tests without running them

deps: ; @: ## install the Debian packages that the program needs

deps-bundle: ## gather headers and libraries in deps/, for `make DEPS=deps` on another machine
	@tools/scripts/bundle_deps.sh deps

config: ## print what was found and which flags are used
	@printf '  %s\n' $(NOTES) 'mode: $(MODE)' 'compiler: $(CC) $(C_ALL)' 'defines: $(CPP_ALL)' \
	  'libraries: $(LIBS)'

install: all ## install into PREFIX (/usr/local), below DESTDIR if given
	@tools/scripts/install.sh install $(BUILD) $(PREFIX) $(DESTDIR)

deb: all ## a Debian package in build/package
	@tools/scripts/package.sh deb $(BUILD)

tarball: all $(BUILD)/portable/glmstream ## the same to unpack and run anywhere, with its libraries
	@tools/scripts/package.sh tarball $(BUILD)

# package.sh puts the libraries there
$(BUILD)/portable/glmstream: $(TOOL_OBJ) $(LIB) $(BUILD)/.libs
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(C_ALL) $(OPENMP) -o $@ $(TOOL_OBJ) $(LIB) $(LIBS) \
	  -Wl,--disable-new-dtags '-Wl,-rpath,$$ORIGIN/../lib/glmstream'

uninstall: ## remove what install put there
	@tools/scripts/install.sh uninstall $(BUILD) $(PREFIX) $(DESTDIR)

pocket: all ## convert the checkpoint in POCKET_SRC into tools/pocket/pocket.gguf
	$(BUILD)/glmstream convert $(POCKET_SRC) -o tools/pocket/pocket.gguf --force --recipe q8 \
	  --types '$(POCKET_TYPES)'
	$(BUILD)/glmstream verify tools/pocket/pocket.gguf --write --force

lint: $(BUILD)/page/files.inc ## layers, words, format, shellcheck, cppcheck, clang-tidy
	@tools/scripts/lint.sh $(CPP_ALL)

format: ## rewrite the sources in the house style
	clang-format -i $(C_FILES)

format-check: ## say where the sources leave the house style
	@clang-format --dry-run --Werror $(C_FILES)

bench: all ## measure this machine: disk, copies, ops, prefill, decode
	@$(BUILD)/glmstream bench all $(ARGS)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo 'variables: CUDA=auto|0|1 CUDA_ARCH="80 90"|native SAN=address,undefined|thread'
	@echo '           WITH_URING WITH_LZ4 WITH_EDIT WITH_HTTP WITH_PAGE WITH_MPI=auto|0|1'
	@echo '           DEPS=folder WERROR=1 V=1'
	@echo '           PREFIX DESTDIR CC CFLAGS CPPFLAGS LDFLAGS NVCCFLAGS'

FORCE:
.DEFAULT_GOAL := all
.PHONY: all run test tests deps deps-bundle config install deb tarball uninstall pocket lint \
        format format-check bench clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) build/fuzz -name '*.d' 2>/dev/null)
