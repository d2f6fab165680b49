-- Pandoc's filter for paper: divs and spans become functions of the Typst template, links get numbers.

local numbers, sources = {}, {}

local function quoted(text)
  return '"' .. text:gsub('\\', '\\\\'):gsub('"', '\\"'):gsub('\r', ''):gsub('\n', '\\n'):gsub('\t', '\\t') .. '"'
end

-- What must not be parted by the end of a page

local function is(block, name)
  return block ~= nil and block.t == 'Div' and block.classes[1] == name
end

local function short(block, most)
  return #pandoc.utils.stringify(block) < most
end

local function in_two_columns(predictions)  -- of about one height, filled one after the other
  local function height(first, last)
    local sum = 0
    for place = first, last do
      local question, options = table.unpack(predictions[place].content)
      if options.t == 'Div' then options = options.content[1] end
      sum = sum + 36 + 14 * math.ceil(#pandoc.utils.stringify(question) / 42) + 15.5 * #options.content
    end
    return sum
  end
  local left, lowest = 1, math.huge
  for place = 1, #predictions do
    local higher = math.max(height(1, place), height(place + 1, #predictions))
    if higher < lowest then left, lowest = place, higher end
  end
  predictions:insert(left + 1, pandoc.RawBlock('typst', ']['))
end

local function keep_together(blocks)
  for place, block in ipairs(blocks) do
    local following = blocks[place + 1]
    if block.t == 'Para' and following and short(block, 450) then
      local listed = following.t == 'BulletList' or following.t == 'CodeBlock' or following.t == 'Table'
      local introduces = listed and pandoc.utils.stringify(block):sub(-1) == ':'
      if introduces or is(following, 'exercise') or is(following, 'together') then
        blocks[place] = pandoc.Div({ block }, pandoc.Attr('', { 'lead' }))
      end
    elseif is(block, 'measured') then
      block.attributes.sticky = tostring(is(following, 'pointer'))
    elseif block.t == 'CodeBlock' and block.classes[1] == 'python' then
      local printed = following and following.t == 'CodeBlock' and following.classes[1] == 'output'
      block.attributes.keep = tostring(printed or is(following, 'screen') or is(following, 'measured'))
    elseif block.t == 'BulletList' and #block.content <= 8 and short(block, 1200) then
      blocks[place] = pandoc.Div({ block }, pandoc.Attr('', { 'together' }))
    elseif is(block, 'predictions') then
      in_two_columns(block.content)
    elseif is(block, 'exercise') then
      block.attributes.sticky = tostring(is(following, 'room'))
    end
  end
  return blocks
end

-- The last page holds at least a quarter: so much at the end stays together, with the sources.
local LEAST = 240  -- points

local function height(block)
  return 8 + 13 * math.ceil(#pandoc.utils.stringify(block) / 95)
end

local function hold_the_end(document)
  local links, count = {}, 0
  document:walk({ Link = function(found)
    if found.target:match('^https?://') and not links[found.target] then
      links[found.target], count = true, count + 1
    end
  end })
  if count == 0 then return end
  local held = 30 + 10 * math.ceil(count / 2)
  local blocks = document.blocks
  if is(blocks[#blocks], 'hints') then blocks = blocks[#blocks].content end
  for place = #blocks, 1, -1 do
    local block = blocks[place]
    if held >= LEAST then break end
    held = held + height(block)
    if is(block, 'hint') then
      block.attributes.sticky = 'true'
    elseif block.t == 'Para' or is(block, 'together') then
      blocks[place] = pandoc.Div({ block }, pandoc.Attr('', { 'lead' }))
    elseif block.t ~= 'Header' then
      break
    end
  end
  if is(document.blocks[#document.blocks], 'hints') then document.blocks[#document.blocks].content = blocks end
  return document
end

-- What must not be parted by the end of a line

local units = { percent = true, bytes = true, byte = true, ms = true, s = true, min = true, minutes = true,
  seconds = true, kB = true, MB = true, GB = true, TB = true, KiB = true, MiB = true, GiB = true, kilobytes = true }

local function unit(text)
  return text:match('^[%%×±]') or units[text:match('^%a+') or '']
end

local function keep_in_line(inlines)
  local function text(place)
    local inline = inlines[place]
    return inline and inline.t == 'Str' and inline.text or ''
  end
  for place, inline in ipairs(inlines) do
    if inline.t == 'Space' or inline.t == 'SoftBreak' then
      local before, after = text(place - 1), text(place + 1)
      local equals = (after == '=' and #before <= 4 and text(place + 3):match('^%d')) or
        (before == '=' and #text(place - 3) <= 4 and after:match('^%d'))
      if (before:match('%d$') and unit(after)) or equals or (before:match('^Steps?$') and after:match('^%d')) then
        inlines[place] = pandoc.Str('\u{a0}')
      end
    elseif inline.t == 'Str' and inline.text:match('^%-%a') then
      inlines[place] = pandoc.Str('-\u{2060}' .. inline.text:sub(2))
    end
  end
  return inlines
end

-- The parts

local function code(block)
  local kind = block.classes[1] or 'text'
  local keep = block.attributes.keep or 'false'
  return pandoc.RawBlock('typst', '#listing(kind: ' .. quoted(kind) .. ', keep: ' .. keep .. ', ' .. quoted(block.text) .. ')')
end

local function bars(formula)  -- in pairs they are fences, not relations
  local text = formula.text:gsub('|([^|]+)|', '\\left| %1 \\right|')
  formula.text = text:gsub('\\;', ' ')  -- pandoc would set no space at all
  return formula
end

local ROOM, LETTER, CODE, INSET = 478, 4.3, 4.9, 8.5  -- points: of a page, of a letter in a table, around a cell

local function widest_word(cell)  -- what no line break parts
  local widest, width = 0, 0
  local function add(text, letter)
    for gap, word in text:gsub('\u{200b}', ' '):gmatch('(%s*)(%S*)') do
      if gap ~= '' then width = 0 end
      width = width + letter * utf8.len(word)
      widest = math.max(widest, width)
    end
  end
  cell.contents:walk({ traverse = 'topdown',
    Inline = function(inline)
      if inline.t == 'Space' or inline.t == 'SoftBreak' or inline.t == 'LineBreak' then width = 0
      elseif inline.t == 'Code' then add(inline.text, CODE)
      elseif inline.t == 'Str' then add(inline.text, LETTER)
      elseif inline.t == 'Link' then add('00', LETTER)  -- its number
      end
    end,
    Block = function() width = 0 end })
  return widest + INSET
end

local function with_breaks(table, most)  -- in code whose words are longer
  return table:walk({ Code = function(code)
    for word in code.text:gmatch('%S+') do
      if #word > most then code.text = code.text:gsub('([_=(.])([%w"])', '%1\u{200b}%2') break end
    end
    return code
  end })
end

local function fit(table, most)  -- a wide one gets columns by the length of what is in them, none too narrow for a word
  table = with_breaks(table, most or 30)
  local longest, least, total = {}, {}, 0
  local function measure(rows)
    for _, row in ipairs(rows) do
      for place, cell in ipairs(row.cells) do
        cell.attr = pandoc.Attr()
        longest[place] = math.max(longest[place] or 6, #pandoc.utils.stringify(cell.contents))
        least[place] = math.max(least[place] or 0, widest_word(cell))
      end
    end
  end
  table.attr = pandoc.Attr()
  measure(table.head.rows)
  for _, body in ipairs(table.bodies) do measure(body.body) end
  for _, length in ipairs(longest) do total = total + length end
  local needed = 0
  for _, width in ipairs(least) do needed = needed + width end
  if needed > ROOM and not most then return fit(table, 0) end
  if total > 100 then
    local open, room, sum, widths = {}, ROOM, 0, {}
    for place, length in ipairs(longest) do open[place], sum = true, sum + length ^ 0.6 end
    repeat  -- what needs more than its share gets what it needs, and the others share the rest
      local settled = true
      for place, length in ipairs(longest) do
        if open[place] and length ^ 0.6 / sum * room < least[place] then
          open[place], widths[place], settled = false, least[place], false
          room, sum = room - least[place], sum - length ^ 0.6
        end
      end
    until settled
    local used = 0
    for place, length in ipairs(longest) do
      widths[place] = widths[place] or length ^ 0.6 / sum * room
      used = used + widths[place]
    end
    for place, spec in ipairs(table.colspecs) do table.colspecs[place] = { spec[1], widths[place] / used } end
  end
  return table
end

local function fitted(table) return fit(table) end

local function columns_of(kind, table)  -- of the tables whose columns we know
  local widths = { timetable = { 0.105, 0.105, 0.08, 0.71 }, pitfalls = { 0.27, 0.25, 0.24, 0.24 },
    decisions = { 0.34, 0.145, 0.515 } }
  for place, width in ipairs(widths[kind]) do table.colspecs[place] = { table.colspecs[place][1], width } end
  return table
end

local function by_visit(timetable)  -- a table for each visit and each pause, which no page break parts
  local tables = {}
  for _, row in ipairs(timetable.bodies[1].body) do
    local minutes = row.cells[3].contents[1].content[1]
    local begins = minutes.t == 'Strong'
    if begins then
      local part = timetable:clone()
      part.head.rows = #tables == 0 and part.head.rows or {}
      part.bodies[1].body = {}
      table.insert(tables, part)
    end
    table.insert(tables[#tables].bodies[1].body, row)
  end
  return tables
end

local function displayed(block)  -- a table that a notebook displays
  if block.format == 'html' and block.text:find('<table') then
    return pandoc.read(block.text, 'html').blocks:walk({ Table = fitted })
  end
end

local function link(found)
  if not found.target:match('^https?://') then
    return nil
  end
  if not numbers[found.target] then
    table.insert(sources, found.target)
    numbers[found.target] = #sources
  end
  local mark = pandoc.RawInline('typst', '#numbered(' .. numbers[found.target] .. ')')
  return { found, mark }
end

local function picture(image)
  local alt = quoted(pandoc.utils.stringify(image.caption))
  local call = '#picture(' .. quoted(image.src) .. ', ' .. image.attributes.width .. ', ' .. alt .. ')'
  return pandoc.RawInline('typst', call)
end

local function span(found)
  local name = found.classes[1]
  if name then
    local content = { pandoc.RawInline('typst', '#' .. name .. '[') }
    for _, inline in ipairs(found.content) do table.insert(content, inline) end
    table.insert(content, pandoc.RawInline('typst', ']'))
    return content
  end
end

local function div(found)
  local name = found.classes[1]
  if name then
    local arguments = ''
    for key, value in pairs(found.attributes) do
      arguments = arguments .. key .. ': ' .. value .. ', '
    end
    if name == 'timetable' then
      local parts = pandoc.Blocks({})
      for _, part in ipairs(by_visit(found.content[1])) do
        parts:insert(columns_of(name, part))
      end
      found.content = parts
    elseif name == 'pitfalls' or name == 'decisions' then
      columns_of(name, found.content[1])
    end
    table.insert(found.content, 1, pandoc.RawBlock('typst', '#' .. name .. '(' .. arguments .. ')['))
    table.insert(found.content, pandoc.RawBlock('typst', ']'))
    return found.content
  end
end

local LONG = 24  -- letters of a word of code: no line break parts it, and the line before it would be mostly gaps

local function ragged(paragraph)
  local long = false
  paragraph:walk({ Code = function(found)
    for word in found.text:gmatch('%S+') do long = long or #word >= LONG end
  end })
  if long then return { pandoc.RawBlock('typst', '#ragged['), paragraph, pandoc.RawBlock('typst', ']') } end
end

local function whole(document)
  if #sources > 0 then
    local list = {}
    for _, source in ipairs(sources) do table.insert(list, quoted(source)) end
    table.insert(document.blocks, pandoc.RawBlock('typst', '#sources((' .. table.concat(list, ', ') .. ',))'))
  end
  return document
end

return {
  { Blocks = keep_together, Inlines = keep_in_line, Pandoc = hold_the_end },
  { CodeBlock = code, Table = fitted, RawBlock = displayed, Link = link, Image = picture, Math = bars, Span = span, Div = div,
    Para = ragged, Pandoc = whole },
}
