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

local function keep_together(blocks)
  for place, block in ipairs(blocks) do
    local following = blocks[place + 1]
    if block.t == 'Para' and following and short(block, 450) then
      local introduces = following.t == 'BulletList' and pandoc.utils.stringify(block):sub(-1) == ':'
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
    elseif is(block, 'hint') then
      block.attributes.sticky = 'true'  -- with the next, and with the sources
    end
  end
  return blocks
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

local function fit(table)  -- a wide one gets columns by the length of what is in them
  local longest, total = {}, 0
  local function measure(rows)
    for _, row in ipairs(rows) do
      for place, cell in ipairs(row.cells) do
        cell.attr = pandoc.Attr()
        longest[place] = math.max(longest[place] or 6, #pandoc.utils.stringify(cell.contents))
      end
    end
  end
  table.attr = pandoc.Attr()
  measure(table.head.rows)
  for _, body in ipairs(table.bodies) do measure(body.body) end
  for _, length in ipairs(longest) do total = total + length end
  if total > 100 then
    local weights, sum = {}, 0
    for place, length in ipairs(longest) do
      weights[place] = length ^ 0.6
      sum = sum + weights[place]
    end
    for place, spec in ipairs(table.colspecs) do
      table.colspecs[place] = { spec[1], weights[place] / sum }
    end
  end
  return table
end

local function columns_of(kind, table)  -- of the tables whose columns we know
  local widths = { timetable = { 0.105, 0.105, 0.08, 0.71 }, rules = { 0.31, 0.35, 0.34 },
    decisions = { 0.35, 0.14, 0.51 } }
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
    return pandoc.read(block.text, 'html').blocks:walk({ Table = fit })
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
        if pandoc.utils.stringify(part.bodies[1].body[1].cells[4].contents) == 'Lunch' then
          parts:insert(pandoc.RawBlock('typst', ']\n#timetable()['))  -- the afternoon
        end
      end
      found.content = parts
    elseif name == 'rules' or name == 'decisions' then
      columns_of(name, found.content[1])
    end
    table.insert(found.content, 1, pandoc.RawBlock('typst', '#' .. name .. '(' .. arguments .. ')['))
    table.insert(found.content, pandoc.RawBlock('typst', ']'))
    return found.content
  end
end

local function whole(document)
  if #sources > 0 then
    for place = #document.blocks, math.max(1, #document.blocks - 1), -1 do  -- so that they never have a page alone
      if document.blocks[place].t == 'Para' then
        document.blocks:insert(place + 1, pandoc.RawBlock('typst', ']'))
        document.blocks:insert(place, pandoc.RawBlock('typst', '#lead['))
      end
    end
    local list = {}
    for _, source in ipairs(sources) do table.insert(list, quoted(source)) end
    table.insert(document.blocks, pandoc.RawBlock('typst', '#sources((' .. table.concat(list, ', ') .. ',))'))
  end
  return document
end

return {
  { Blocks = keep_together, Inlines = keep_in_line },
  { CodeBlock = code, Table = fit, RawBlock = displayed, Link = link, Image = picture, Math = bars, Span = span, Div = div,
    Pandoc = whole },
}
