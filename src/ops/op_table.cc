// SPDX-License-Identifier: Apache-2.0
#include "ops/op_table.h"

#include <algorithm>
#include <string>

#include "device/host/isa.h"
#include "ops/cpu/cpu_table.h"
#include "ops/ref/ref_table.h"

namespace loralei {

std::vector<const OpTable*> available_op_tables() {
  std::vector<const OpTable*> tables{&ref_op_table()};
  for (const OpTable* table :
       {avx2_op_table(), avx2_vnni_op_table(), avx512_op_table(), avx512_vnni_op_table(), avx512_bf16_op_table(),
        amx_op_table(), neon_op_table(), neon_dotprod_op_table(), neon_i8mm_op_table()}) {
    if (table != nullptr) tables.push_back(table);
  }
  return tables;
}

std::vector<const OpTable*> plain_op_tables() {
  std::vector<const OpTable*> tables;
  for (const OpTable* table : available_op_tables()) {
    if (tables.empty() || table->matmul != tables.back()->matmul) tables.push_back(table);
  }
  return tables;
}

// Intel's processors give the unit of bf16 pairs half the rate of f32 FMA (measured on
// Sapphire Rapids), AMD's twice that rate.
static bool is_worth_rounding(const OpTable& table) { return !table.rounds_bf16 || host_vendor() != CpuVendor::kIntel; }

Result<const OpTable*> select_op_table(std::string_view name, Bf16Inputs inputs) {
  std::vector<const OpTable*> tables = available_op_tables();
  if (inputs == Bf16Inputs::kExact) std::erase_if(tables, [](const OpTable* table) { return table->rounds_bf16; });
  if (name.empty())
    return *std::find_if(tables.rbegin(), tables.rend(),
                         [](const OpTable* table) { return is_worth_rounding(*table); });
  std::string choices;
  for (const OpTable* table : tables) {
    if (name == table->name) return table;
    choices += (choices.empty() ? "" : ", ") + std::string(table->name);
  }
  return invalid_argument("instruction set '" + std::string(name) +
                          "' is not known, not offered by this machine, or rounds inputs that --activations keeps as "
                          "they are; choose one of: " +
                          choices);
}

}  // namespace loralei
