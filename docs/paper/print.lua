-- Pandoc's filter for paper: divs and spans become functions of the Typst template, links get numbers.

local function quoted(text)
  return '"' .. text:gsub('\\', '\\\\'):gsub('"', '\\"'):gsub('\r', ''):gsub('\n', '\\n'):gsub('\t', '\\t') .. '"'
end

local function is(block, name)
  return block ~= nil and block.t == 'Div' and block.classes[1] == name
end

-- What must not be parted by the end of a page: an introduction and its list, an exercise's text and its box, code and
-- what it prints.
local function keep_together(blocks)
  for place = #blocks, 1, -1 do
    local block, following = blocks[place], blocks[place + 1]
    if block.t == 'Para' and following and #pandoc.utils.stringify(block) < 450 then
      local begins = block.content[1].t == 'Strong' and is(following, 'lead')  -- "**7 minutes.** ..."
      if pandoc.utils.stringify(block):sub(-1) == ':' or is(following, 'exercise') or begins then
        blocks[place] = pandoc.Div({ block }, pandoc.Attr('', { 'lead' }))
      end
    elseif block.t == 'CodeBlock' and following then
      local printed = following.t == 'CodeBlock' and following.classes[1] == 'output'
      block.attributes.keep = tostring(printed or is(following, 'screen') or is(following, 'measured'))
    elseif block.t == 'BulletList' and #block.content <= 8 then
      blocks[place] = pandoc.Div({ block }, pandoc.Attr('', { 'together' }))
    end
  end
  return blocks
end

local function code(block)
  local kind, keep = block.classes[1] or 'text', block.attributes.keep or 'false'
  return pandoc.RawBlock('typst', '#listing(kind: ' .. quoted(kind) .. ', keep: ' .. keep .. ', ' .. quoted(block.text) .. ')')
end

local function displayed(block)  -- a table that a notebook displays
  if block.format == 'html' then return pandoc.read(block.text, 'html').blocks end
end

local function bars(formula)  -- in pairs they are fences, not relations
  formula.text = formula.text:gsub('|([^|]+)|', '\\left| %1 \\right|'):gsub('\\;', ' ')
  return formula
end

local numbers, sources = {}, {}

local function link(found)
  if not found.target:match('^https?://') then return nil end
  if not numbers[found.target] then
    table.insert(sources, found.target)
    numbers[found.target] = #sources
  end
  return { found, pandoc.RawInline('typst', '#numbered(' .. numbers[found.target] .. ')') }
end

local function list_sources(document)
  if #sources > 0 then
    local list = {}
    for _, source in ipairs(sources) do table.insert(list, quoted(source)) end
    document.blocks:insert(pandoc.RawBlock('typst', '#sources((' .. table.concat(list, ', ') .. ',))'))
  end
  return document
end

local function picture(image)
  local alt = quoted(pandoc.utils.stringify(image.caption))
  local call = '#picture(' .. quoted(image.src) .. ', ' .. image.attributes.width .. ', ' .. alt .. ')'
  return pandoc.RawInline('typst', call)
end

local function span(found)
  if found.classes[1] then
    found.content:insert(1, pandoc.RawInline('typst', '#' .. found.classes[1] .. '['))
    found.content:insert(pandoc.RawInline('typst', ']'))
    return found.content
  end
end

local widths = { pitfalls = { 0.25, 0.27, 0.24, 0.24 }, decisions = { 0.38, 0.105, 0.515 } }  -- of the sheet's tables

local function div(found)
  local name = found.classes[1]
  if not name then return nil end
  for place, width in ipairs(widths[name] or {}) do
    local specs = found.content[1].colspecs
    specs[place] = { specs[place][1], width }
  end
  found.content:insert(1, pandoc.RawBlock('typst', '#' .. name .. '['))
  found.content:insert(pandoc.RawBlock('typst', ']'))
  return found.content
end

return {
  { Blocks = keep_together },
  { CodeBlock = code, RawBlock = displayed, Link = link, Image = picture, Math = bars, Span = span, Div = div,
    Pandoc = list_sources },
}
