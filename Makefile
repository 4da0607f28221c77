# SPDX-License-Identifier: MIT
# glmstream: `make help` lists the targets.

V        ?= 0
Q        := $(if $(filter 1,$(V)),,@)
SAN      ?=
CUDA     ?= auto
DEPS     ?=
comma    := ,
MODE     := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)
BUILD    := build/$(MODE)

CC       ?= gcc
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wno-format-truncation
CFLAGS   ?= -O2 -g
override CFLAGS += -std=gnu11 -D_GNU_SOURCE -fno-math-errno -ffp-contract=off -fopenmp -MMD -MP $(WARN) $(EXTRA)
CPPFLAGS := -I. $(if $(DEPS),-I$(DEPS)/include)
LDFLAGS  := $(if $(DEPS),-L$(DEPS)/lib)
LDLIBS   := -lpcre2-8 -ljansson -llz4 -luring -lpthread -lm
ifneq ($(SAN),)
override CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer
LDFLAGS  += -fsanitize=$(SAN)
endif

LIB_SRC  := $(wildcard src/*/*.c cache/*.c stream/*.c kernels/*.c kernels/cpu/*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libglmstream.a
TOOL_SRC := $(wildcard tools/*.c)
TOOL_OBJ := $(TOOL_SRC:%.c=$(BUILD)/%.o)
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
TEST_AUX := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(wildcard tests/test_*.c),$(wildcard tests/*.c)))

all: $(LIB) $(if $(TOOL_SRC),$(BUILD)/glmstream)

$(LIB): $(LIB_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/glmstream: $(TOOL_OBJ) $(LIB)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -ledit

$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(TEST_AUX) $(LIB)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@[ "$(V)" = 1 ] || echo "  CC $<"
	$(Q)$(CC) $(CFLAGS) $(CPPFLAGS) -c $< -o $@

check: $(TESTS)
	@for t in $(TESTS); do $$t || exit 1; done

clean:
	rm -rf build

.PHONY: all check clean
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(TOOL_OBJ:.o=.d) $(TEST_AUX:.o=.d) $(TESTS:=.d)
